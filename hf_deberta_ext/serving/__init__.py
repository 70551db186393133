# SPDX-License-Identifier: Apache-2.0
"""Serve DeBERTa with vLLM: the plugin (`plugin`), the models (`vllm_models`) and requests of text pairs (`pairs`)."""
