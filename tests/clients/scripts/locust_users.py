"""Users for locust: a native request, and a chat that is read to its end."""

from locust import HttpUser, task


class User(HttpUser):
    @task
    def generate(self):
        params = {"max_new_tokens": 8, "temperature": 0}
        with self.client.post(
            "/generate", json={"text": "Hello", "sampling_params": params}, catch_response=True
        ) as answer:
            if "text" not in answer.json():
                answer.failure("no text")

    @task
    def chat(self):
        fields = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "stream": True}
        with self.client.post("/v1/chat/completions", json=fields, stream=True, catch_response=True) as answer:
            lines = [line for line in answer.iter_lines() if line]
            if lines[-1] != b"data: [DONE]":
                answer.failure(f"the stream ended in {lines[-1]!r}")
