"""What ``LLM`` does with conversations: format them as prompts, and complete those.

Source: vllm/entrypoints/llm.py#L615-L707 (LLM.chat) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mini_vllm.config import EngineConfig
from mini_vllm.engine.chat_template import render_chat
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.offline_inputs import LoRARequests, Params, Progress
from mini_vllm.errors import bad_value, show
from mini_vllm.inputs import PromptType
from mini_vllm.multimodal.chat import encode_chat, take_images, with_placeholders
from mini_vllm.outputs import RequestOutput


class OfflineChat:
    """The part of ``LLM`` for conversations."""

    engine: LLMEngine
    config: EngineConfig
    chat_template: str | None

    generate: Callable[..., list[RequestOutput]]
    enqueue: Callable[..., list[str]]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: Params = None,
        use_tqdm: Progress = True,
        lora_request: LoRARequests = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several, in the format of the model's chat template.

        Args:
            messages: ``[{"role": "user", "content": "..."}]``, or a list of such lists. For a
                model that sees, content may be a list of parts:
                ``{"type": "text", "text": "..."}``,
                ``{"type": "image_pil", "image_pil": picture}``, or
                ``{"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}``.
            chat_template: Jinja, instead of that of ``LLM(chat_template=...)`` and the tokenizer's.
            chat_template_content_format: vLLM's; templates are always given text.
            add_generation_prompt: end with the beginning of the assistant's turn.
            continue_final_message: leave the last message open, for the model to go on with.
            tools: what the model may call, for templates that tell it.
            chat_template_kwargs: variables of the template's own, such as
                ``{"enable_thinking": False}``.
            tokenization_kwargs: as of :meth:`generate`. Without ``add_special_tokens`` the
                template's own are all that there are.
            mm_processor_kwargs: options of the image processor for these conversations, such as
                ``{"max_pixels": 200704}``.

        Raises:
            ValueError: if there is no chat template, or the model takes text only.

        Source: vllm/entrypoints/llm.py#L615-L707 (LLM.chat) @ v0.22.1
        """
        prompts = self._chat_prompts(
            messages,
            chat_template_content_format,
            tokenization_kwargs,
            mm_processor_kwargs,
            **(chat_template_kwargs or {}),
            template=chat_template,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        return self.generate(
            prompts,
            sampling_params,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            tokenization_kwargs=tokenization_kwargs,
        )

    def enqueue_chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: Params = None,
        use_tqdm: Progress = True,
        lora_request: LoRARequests = None,
        priority: Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Queue conversations without running them; returns their ids. Arguments as of
        :meth:`chat` and :meth:`generate`.

        Source: vllm/entrypoints/llm.py#L709-L783 (LLM.enqueue_chat) @ v0.22.1
        """
        prompts = self._chat_prompts(
            messages,
            chat_template_content_format,
            tokenization_kwargs,
            mm_processor_kwargs,
            **(chat_template_kwargs or {}),
            template=chat_template,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        return self.enqueue(
            prompts,
            sampling_params,
            lora_request=lora_request,
            priority=priority,
            use_tqdm=use_tqdm,
            tokenization_kwargs=tokenization_kwargs,
        )

    def _chat_prompts(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        content_format: str,
        tokenization_kwargs: Mapping[str, Any] | None,
        mm_processor_kwargs: Mapping[str, Any] | None,
        **options: Any,
    ) -> list[PromptType]:
        """One conversation, or several, as prompts."""
        if content_format not in ("auto", "string"):
            raise ValueError(
                f"chat_template_content_format is {show(content_format)}; templates are given text "
                "here; pass 'auto' or 'string'"
            )
        if not isinstance(messages, list | tuple):
            raise bad_value(
                "messages",
                messages,
                "it must be a list such as [{'role': 'user', 'content': '...'}], or a list of "
                "such lists",
            )
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        special = bool((tokenization_kwargs or {}).get("add_special_tokens", False))
        return [
            self.chat_prompt(one, mm_processor_kwargs, special, **options) for one in conversations
        ]

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        add_special_tokens: bool = False,
        **options: Any,
    ) -> PromptType:
        """A conversation as a prompt, with the pictures that it holds."""
        plain, images = take_images(messages)
        text = self._render(plain, **options)
        sees = self.engine.input_processor.images is not None
        token_ids = encode_chat(self.engine.tokenizer, text, sees, add_special_tokens)
        prompt = {"prompt": with_placeholders(text), "prompt_token_ids": token_ids}
        if not images:
            return prompt
        about = {"multi_modal_data": {"image": images}, "mm_processor_kwargs": mm_processor_kwargs}
        return prompt | about

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> list[int]:
        """The prompt's token ids for a conversation, ready for the assistant's turn.

        Args:
            options: of :func:`~mini_vllm.engine.chat_template.render_chat`.
        """
        return self._encode(self._render(messages, **options))

    def _render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        options["template"] = options.get("template") or self.chat_template
        has_template = options["template"] or getattr(self.engine.tokenizer, "chat_template", None)
        if not has_template:
            raise ValueError(
                f"the tokenizer of {self.config.model.model} has no chat template; use generate()"
            )
        return render_chat(self.engine.tokenizer, messages, **options)

    def _encode(self, text: str) -> list[int]:
        """Tokens of a text that has its special tokens already."""
        return self.engine.tokenizer.encode(text, add_special_tokens=False)
