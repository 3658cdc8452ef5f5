"""SGLang's frontend language against a server: run with its URL, in an environment of the frontend's."""

import sys

import sglang as sgl

URL = sys.argv[1]


@sgl.function
def answer(s, question):
    s += "Q: " + question + "\nA:"
    s += sgl.gen("answer", max_tokens=8, temperature=0, stop="\n\n")


@sgl.function
def chat(s):
    s += sgl.system("You answer.")
    s += sgl.user("Hello")
    s += sgl.assistant(sgl.gen("first", max_tokens=6, temperature=0))
    s += sgl.user("Again")
    s += sgl.assistant(sgl.gen("second", max_tokens=6, temperature=0, ignore_eos=True))


@sgl.function
def choose(s):
    s += "The sky is "
    s += sgl.select("colour", ["blue", "a rather long answer", "red"])


@sgl.function
def fork(s):
    s += "Two ideas:"
    branches = s.fork(2)
    for index, branch in enumerate(branches):
        branch += f" {index}"
        branch += sgl.gen("idea", max_tokens=5, temperature=0, ignore_eos=True)
    s += " 0" + branches[0]["idea"] + " 1" + branches[1]["idea"]
    s += sgl.gen("end", max_tokens=4, temperature=0, ignore_eos=True)


def main():
    backend = sgl.RuntimeEndpoint(URL)
    sgl.set_default_backend(backend)
    backend.flush_cache()

    one = answer.run(question="one")
    assert len(one["answer"]) > 0, one
    assert one.get_meta_info("answer")["completion_tokens"] > 0
    batch = answer.run_batch([{"question": q} for q in ("one", "two", "three")], progress_bar=False)
    assert batch[0]["answer"] == one["answer"]

    state = answer.run(question="one", stream=True)
    assert "".join(state.text_iter(var_name="answer")) == one["answer"]

    state = chat.run()
    assert state["first"] is not None and state["second"]
    assert [message["role"] for message in state.messages()] == ["system", "user", "assistant", "user", "assistant"]

    state = choose.run()
    assert state["colour"] in ("blue", "a rather long answer", "red")
    if hasattr(sgl, "greedy_token_selection"):
        for method in (
            sgl.token_length_normalized,
            sgl.greedy_token_selection,
            sgl.unconditional_likelihood_normalized,
        ):

            @sgl.function
            def by_method(s, method=method):
                s += "The sky is "
                s += sgl.select("colour", ["blue", "red"], choices_method=method)

            assert by_method.run()["colour"] in ("blue", "red")

    state = fork.run()
    assert state["end"]
    backend.flush_cache()
    info = backend.get_server_info() if hasattr(backend, "get_server_info") else backend.get_server_args()
    assert info["tp_size"] == 2


main()
