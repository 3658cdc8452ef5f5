"""The tokenizer of a Hugging Face folder, without transformers: importing that takes seconds, and brings torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from common.models.config import read_json

# From here on a text is encoded as a batch, which lets other threads run meanwhile.
LONG_TEXT = 10_000


class Tokenizer:
    """Gives what transformers' AutoTokenizer of the same folder gives. ValueError if there is no tokenizer.json.

    Whether BOS is added is up to tokenizer.json: transformers 5 no longer reads add_bos_token of tokenizer_config.json.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise ValueError(f"{self.folder}: there is no tokenizer.json")
        try:
            self._backend = Backend.from_file(str(path))
        except Exception as error:  # tokenizers raises plain Exception
            raise ValueError(f"{path} is not a readable tokenizer ({error})") from None
        # A fine-tuning script may have left these in the file.
        self._backend.no_truncation()
        self._backend.no_padding()
        has_config = (self.folder / "tokenizer_config.json").is_file()
        self._config = read_json(self.folder, "tokenizer_config.json") if has_config else {}
        self._templates: dict[str | None, Any] = {}  # compiled; None: the model's own

    @property
    def vocab_size(self) -> int:
        """Added tokens included."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def plain_ids(self) -> list[int]:
        """The ids of all tokens but special ones, ascending."""
        special = {id for id, token in self._backend.get_added_tokens_decoder().items() if token.special}
        return sorted(set(self._backend.get_vocab(with_added_tokens=True).values()) - special)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids; special tokens written out in the text become their ids. `add_special_tokens`: those the model
        wants around every text, such as BOS; not for text of `apply_chat_template`, which has them.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the text has half of a surrogate pair, {text[error.start]!a} at character {error.start},"
                " which no tokenizer can encode: remove it"
            ) from None
        if len(text) > LONG_TEXT:
            return self._backend.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """The text of the ids; bytes that are not UTF-8 become U+FFFD. No spaces are cleaned up."""
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(self, messages: list[dict[str, Any]], template: str | None = None) -> str:
        """The prompt for the assistant's next message. messages: {"role": ..., "content": ...} each. `template`: Jinja
        text in place of the model's own.

        ValueError if the model has no chat template, or if its template refuses the messages.
        """
        if template not in self._templates:
            self._templates[template] = self._compile(self._chat_template() if template is None else template)
        tokens = {name: token for name in ("bos_token", "eos_token") if (token := self._special(name))}
        try:
            return self._templates[template].render(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **tokens
            )
        except Exception as error:  # a template may do anything
            raise ValueError(f"the chat template refuses these messages ({error})") from None

    @staticmethod
    def _compile(template: str) -> Any:
        from jinja2.exceptions import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        environment.globals["raise_exception"] = _refuse
        try:
            return environment.from_string(template)
        except TemplateError as error:
            raise ValueError(f"the chat template cannot be read ({error})") from None

    def _chat_template(self) -> str:
        path = self.folder / "chat_template.jinja"
        if path.is_file():
            return path.read_text(encoding="utf-8")
        template = self._config.get("chat_template")
        if isinstance(template, list):
            template = next((entry["template"] for entry in template if entry["name"] == "default"), None)
        if not template:
            raise ValueError(f"{self.folder}: the model has no chat template; give it a plain prompt")
        return template

    def _special(self, name: str) -> str | None:
        """A token that tokenizer_config.json names: its text, or an object with the text as `content`."""
        token = self._config.get(name)
        return token["content"] if isinstance(token, dict) else token


def _refuse(message: str) -> None:
    from jinja2.exceptions import TemplateError

    raise TemplateError(message)
