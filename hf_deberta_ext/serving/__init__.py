# SPDX-License-Identifier: Apache-2.0
"""DeBERTa behind vLLM: the plugin (`plugin`), the models (`vllm_models`) and requests of text pairs (`pairs`)."""
