//! Small synthetic model files for the tests of this crate.

use crate::{Architecture, FileTensor, LLAMA, Layout, ModelFile, Reading};
use laneway_numerics::{WeightFormat, decode_row, encode_row};
use laneway_ops::synthetic::Stream;
use std::collections::BTreeMap;

/// Sizes and features of a synthetic model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recipe {
    pub architecture: Architecture,
    pub vocabulary: usize,
    pub hidden: usize,
    pub inner: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub rotary_dims: usize,
    pub tied: bool,
    pub rope_factors: bool,
    pub linear_scaling: Option<f32>,
}

impl Default for Recipe {
    fn default() -> Self {
        Recipe {
            architecture: LLAMA,
            vocabulary: 77,
            hidden: 96,
            inner: 160,
            layers: 2,
            heads: 3,
            kv_heads: 1,
            head_dim: 32,
            rotary_dims: 32,
            tied: false,
            rope_factors: false,
            linear_scaling: None,
        }
    }
}

/// A tensor as a file holds it.
#[derive(Clone, Debug)]
struct Encoded {
    format: WeightFormat,
    /// Outermost dimension first.
    shape: Vec<usize>,
    data: Vec<u8>,
}

/// A metadata value.
#[derive(Clone, Debug)]
enum Value {
    Unsigned(u64),
    Float(f32),
    Text(String),
    Array(usize),
}

/// A model file under construction.
#[derive(Clone, Debug)]
pub(crate) struct TestFile {
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, Encoded>,
    noise: Stream,
}

/// Formats that the matrices of a file take in turn.
const FORMATS: [WeightFormat; 5] = [
    WeightFormat::F32,
    WeightFormat::Q8_0,
    WeightFormat::F16,
    WeightFormat::Q4_1,
    WeightFormat::Bf16,
];

impl TestFile {
    pub fn new(recipe: &Recipe) -> Self {
        let mut file = TestFile {
            metadata: BTreeMap::new(),
            tensors: BTreeMap::new(),
            noise: Stream::new(21),
        };
        let &Recipe { vocabulary, hidden, inner, heads, kv_heads, head_dim, .. } = recipe;
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        file.set_text("general.architecture", "llama");
        file.set_array("tokenizer.ggml.tokens", vocabulary);
        for (key, value) in [
            ("context_length", 128),
            ("embedding_length", hidden),
            ("feed_forward_length", inner),
            ("block_count", recipe.layers),
            ("attention.head_count", heads),
            ("attention.head_count_kv", kv_heads),
            ("rope.dimension_count", recipe.rotary_dims),
        ] {
            file.set_uint(&format!("llama.{key}"), value as u64);
        }
        file.set_float("llama.attention.layer_norm_rms_epsilon", 1e-5);
        file.set_float("llama.rope.freq_base", 1000.0);
        if let Some(factor) = recipe.linear_scaling {
            file.set_text("llama.rope.scaling.type", "linear");
            file.set_float("llama.rope.scaling.factor", factor);
        }
        if recipe.rope_factors {
            let factors: Vec<f32> = (0..recipe.rotary_dims / 2).map(Self::rope_factor).collect();
            file.vector("rope_freqs.weight", &factors);
        }
        file.matrix("token_embd.weight", vocabulary, hidden);
        file.norm("output_norm.weight", hidden);
        if !recipe.tied {
            file.matrix("output.weight", vocabulary, hidden);
        }
        for layer in 0..recipe.layers {
            let name = |name: &str| format!("blk.{layer}.{name}");
            file.norm(&name("attn_norm.weight"), hidden);
            for (part, width) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
                file.matrix(&name(&format!("{part}.weight")), width, hidden);
                if recipe.architecture.qkv_bias {
                    file.norm(&name(&format!("{part}.bias")), width);
                }
            }
            if recipe.architecture.head_norm {
                file.norm(&name("attn_q_norm.weight"), head_dim);
                file.norm(&name("attn_k_norm.weight"), head_dim);
            }
            file.matrix(&name("attn_output.weight"), hidden, q);
            file.norm(&name("ffn_norm.weight"), hidden);
            file.matrix(&name("ffn_gate.weight"), inner, hidden);
            file.matrix(&name("ffn_up.weight"), inner, hidden);
            file.matrix(&name("ffn_down.weight"), hidden, inner);
        }
        file
    }

    /// Frequency factor of a rotated pair, where a recipe asks for them.
    pub fn rope_factor(pair: usize) -> f32 {
        1.0 + 0.5 * pair as f32
    }

    pub fn set_uint(&mut self, key: &str, value: u64) {
        self.metadata.insert(key.to_owned(), Value::Unsigned(value));
    }

    pub fn set_float(&mut self, key: &str, value: f32) {
        self.metadata.insert(key.to_owned(), Value::Float(value));
    }

    pub fn set_text(&mut self, key: &str, value: &str) {
        self.metadata.insert(key.to_owned(), Value::Text(value.to_owned()));
    }

    pub fn set_array(&mut self, key: &str, len: usize) {
        self.metadata.insert(key.to_owned(), Value::Array(len));
    }

    /// Removes a metadata key.
    pub fn forget(&mut self, key: &str) {
        self.metadata.remove(key);
    }

    /// Removes a tensor.
    pub fn remove(&mut self, name: &str) {
        self.tensors.remove(name);
    }

    /// Adds or replaces a random matrix.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) {
        let format = FORMATS[self.tensors.len() % FORMATS.len()];
        let values = self.noise.normals(rows * cols, (cols as f32).sqrt().recip());
        self.insert(name, format, vec![rows, cols], &values);
    }

    /// Adds a random vector around one.
    fn norm(&mut self, name: &str, len: usize) {
        let values: Vec<f32> = (0..len).map(|_| 1.0 + 0.2 * self.noise.normal()).collect();
        self.vector(name, &values);
    }

    fn vector(&mut self, name: &str, values: &[f32]) {
        self.insert(name, WeightFormat::F32, vec![values.len()], values);
    }

    fn insert(&mut self, name: &str, format: WeightFormat, shape: Vec<usize>, values: &[f32]) {
        let cols = *shape.last().unwrap();
        let bytes = format.row_bytes(cols).unwrap();
        let mut data = vec![0; values.len() / cols * bytes];
        for (values, data) in values.chunks(cols).zip(data.chunks_mut(bytes)) {
            encode_row(format, values, data).unwrap();
        }
        self.tensors.insert(name.to_owned(), Encoded { format, shape, data });
    }

    /// A tensor's elements as the file holds them.
    pub fn tensor(&self, name: &str) -> Vec<f64> {
        let Encoded { format, shape, data } = &self.tensors[name];
        let cols = *shape.last().unwrap();
        let mut values = vec![0.0; cols];
        let rows = data.chunks(format.row_bytes(cols).unwrap());
        rows.flat_map(|row| {
            decode_row(*format, row, &mut values).unwrap();
            values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>()
        })
        .collect()
    }
}

impl ModelFile for TestFile {
    fn layout(&self) -> Layout {
        Layout::Gguf
    }

    fn text(&self, key: &str) -> Result<Option<&str>, String> {
        match self.metadata.get(key) {
            Some(Value::Text(text)) => Ok(Some(text)),
            other => absent(other),
        }
    }

    fn unsigned(&self, key: &str) -> Result<Option<u64>, String> {
        match self.metadata.get(key) {
            Some(Value::Unsigned(value)) => Ok(Some(*value)),
            other => absent(other),
        }
    }

    fn float(&self, key: &str) -> Result<Option<f32>, String> {
        match self.metadata.get(key) {
            Some(Value::Float(value)) => Ok(Some(*value)),
            other => absent(other),
        }
    }

    fn array_len(&self, key: &str) -> Result<Option<usize>, String> {
        match self.metadata.get(key) {
            Some(Value::Array(len)) => Ok(Some(*len)),
            other => absent(other),
        }
    }

    fn tensors(&self) -> Vec<FileTensor<'_>> {
        let tensors = self.tensors.iter().map(|(name, tensor)| {
            let Encoded { format, shape, data } = tensor;
            FileTensor {
                name,
                format: *format,
                shape: shape.clone(),
                parts: vec![data],
                reading: Reading::Plain,
            }
        });
        tensors.collect()
    }
}

/// What a reader of another type makes of a value.
fn absent<T>(value: Option<&Value>) -> Result<Option<T>, String> {
    value.map_or(Ok(None), |other| Err(format!("{other:?} is of another type")))
}
