"""The models: where they come from, what their config says, and the forward on one rank's shard.

```
 sources   "smollm2", "tiny", a GGUF file or a folder -> a Hugging Face folder    (tiny, smollm2, gguf_model: how)
 config    config.json -> ModelConfig, and who holds which heads; rope         no torch: main and detokenizer read it
 weights   which tensors the safetensors files must hold, and whether they do          no torch either
 loader    safetensors -> the tensors of one rank
 linear    y = x W^T, with oneDNN-packed weights where that works
 llama     token ids -> logits
```
"""
