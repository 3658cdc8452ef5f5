"""The models: where they come from, what their config says, and the Llama forward on one rank's shard.

```
 sources   "smollm2", "tiny" or a folder -> a Hugging Face folder     (tiny, smollm2: how the two are made)
 config    config.json -> ModelConfig, and who holds which heads      no torch: main and detokenizer read it
 loader    safetensors -> the tensors of one rank
 linear    y = x W^T, with oneDNN-packed weights where that works
 llama     token ids -> logits
```
"""
