"""The HTTP front, in the engine's main process: SGLang's native endpoints and OpenAI's, over any stage.

```
 client ──HTTP──> guard ──> routes ──> Call ──requests──> Engine ──> [ stage ] ──> detokenizer
   ^                          ^         ^                                             |
   `──── data: {...} ─────────┴─────────┴──── mailroom <── receiver's thread <──texts─'
```

    command    bind, start the engine, run uvicorn, say why it ended     guard      key, last resort for errors
    app        the routes and the OpenAPI document                       errors     one shape for every error
    bodies     bytes -> checked fields                                   calls      one HTTP call's requests
    mailroom   from the receiver's thread to the event loop              events     what a stream writes
    native     /generate                                                 info       what the server says of itself
    completions, chat, openai_fields, openai_answers, openai_logprobs    schemas    bodies of answers, for OpenAPI
    metrics    SGLang's names for Prometheus                              ranges     what fields may be, for OpenAPI
"""
