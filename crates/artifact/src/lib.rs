//! Model files: GGUF reader and model resources, memory-mapped and validated before use.
