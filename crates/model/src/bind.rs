//! Binding: the tensors that an architecture implies, checked against the file's, then packed one
//! by one.

use crate::forward::{Layer, Projection, Weights};
use crate::rope::inverse_frequencies;
use crate::{Architecture, FileTensor, LlamaConfig, LoadError, ModelFile};
use laneway_numerics::decode_row;
use laneway_ops::{MatrixSource, OpError, Ops};
use std::collections::BTreeMap;

/// How far a load has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress<'a> {
    /// Tensor that is bound next; empty at the end.
    pub tensor: &'a str,
    /// Tensors bound.
    pub tensors_done: usize,
    /// Tensors in all.
    pub tensors: usize,
    /// Bytes of the file that were bound.
    pub bytes_done: u64,
    /// Bytes of all tensors in the file.
    pub bytes: u64,
}

/// What binding yields.
pub(crate) struct Bound<B: Ops> {
    pub weights: Weights<B>,
    pub inverse_frequencies: Vec<f32>,
    /// Bytes of all weights as the backend packed them.
    pub packed_bytes: u64,
}

/// The file's tensors by name, all of them known and of the right shape.
struct Inventory<'a> {
    tensors: BTreeMap<&'a str, FileTensor<'a>>,
    tied: bool,
}

pub(crate) const EMBEDDING: &str = "token_embd.weight";
const NORM: &str = "output_norm.weight";
const HEAD: &str = "output.weight";
/// Frequency factors of Llama 3's context extension, one a rotated pair.
const ROPE_FACTORS: &str = "rope_freqs.weight";

impl<'a> Inventory<'a> {
    fn take(
        architecture: &Architecture,
        config: &LlamaConfig,
        file: &'a dyn ModelFile,
    ) -> Result<Self, LoadError> {
        let mut found = BTreeMap::new();
        for tensor in file.tensors() {
            found.insert(tensor.name, tensor);
        }
        let tied = !found.contains_key(HEAD);
        let expected =
            expected_shapes(architecture, config, tied, found.contains_key(ROPE_FACTORS));
        for (name, shape) in &expected {
            match found.get(name.as_str()) {
                None => {
                    let (name, expected) = (name.clone(), shape.clone());
                    return Err(LoadError::MissingTensor { name, expected });
                }
                Some(tensor) if tensor.shape != *shape => {
                    return Err(LoadError::TensorShape {
                        name: name.clone(),
                        found: tensor.shape.clone(),
                        expected: shape.clone(),
                    });
                }
                Some(_) => {}
            }
        }
        let unknown = found.values().filter(|tensor| !expected.contains_key(tensor.name));
        let names: Vec<_> = unknown.map(|t| format!("{} {:?}", t.name, t.shape)).collect();
        if names.is_empty() {
            Ok(Inventory { tensors: found, tied })
        } else {
            Err(LoadError::UnknownTensors { architecture: architecture.name, names })
        }
    }

    /// Bytes of all weights once packed: matrices as the backend has them, vectors in f32.
    fn packed_bytes<B: Ops>(&self, backend: &B) -> u64 {
        let bytes = |tensor: &FileTensor<'_>| match tensor.shape[..] {
            [rows, cols] => backend.packed_bytes(tensor.format, rows, cols),
            _ => tensor.elements() * size_of::<f32>(),
        };
        self.tensors.values().map(|tensor| bytes(tensor) as u64).sum()
    }
}

/// Every tensor that an architecture implies, and its shape, outermost dimension first.
fn expected_shapes(
    architecture: &Architecture,
    config: &LlamaConfig,
    tied: bool,
    rope_factors: bool,
) -> BTreeMap<String, Vec<usize>> {
    let &LlamaConfig { vocabulary, hidden, inner, head_dim, .. } = config;
    let (q, kv) = (config.q_width(), config.kv_width());
    let mut shapes = BTreeMap::new();
    shapes.insert(EMBEDDING.to_owned(), vec![vocabulary, hidden]);
    shapes.insert(NORM.to_owned(), vec![hidden]);
    if !tied {
        shapes.insert(HEAD.to_owned(), vec![vocabulary, hidden]);
    }
    if rope_factors {
        shapes.insert(ROPE_FACTORS.to_owned(), vec![config.rotary_dims / 2]);
    }
    for layer in 0..config.layers {
        let mut add = |name: &str, shape: &[usize]| {
            shapes.insert(layer_tensor(layer, name), shape.to_vec());
        };
        add("attn_norm.weight", &[hidden]);
        for (name, width) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
            add(&format!("{name}.weight"), &[width, hidden]);
            if architecture.qkv_bias {
                add(&format!("{name}.bias"), &[width]);
            }
        }
        if architecture.head_norm {
            add("attn_q_norm.weight", &[head_dim]);
            add("attn_k_norm.weight", &[head_dim]);
        }
        add("attn_output.weight", &[hidden, q]);
        add("ffn_norm.weight", &[hidden]);
        add("ffn_gate.weight", &[inner, hidden]);
        add("ffn_up.weight", &[inner, hidden]);
        add("ffn_down.weight", &[hidden, inner]);
    }
    shapes
}

fn layer_tensor(layer: usize, name: &str) -> String {
    format!("blk.{layer}.{name}")
}

/// Bytes that the weights of `file` will occupy on `backend`; nothing is loaded.
///
/// # Errors
/// As [`Model::load`](crate::Model::load) for files that do not fit an architecture.
pub fn packed_weight_bytes<B: Ops>(file: &dyn ModelFile, backend: &B) -> Result<u64, LoadError> {
    let architecture = crate::file::architecture(file)?;
    let config = LlamaConfig::read(&architecture, file)?;
    Ok(Inventory::take(&architecture, &config, file)?.packed_bytes(backend))
}

/// Checks all tensors, then packs them in the order of use.
pub(crate) fn bind<B: Ops>(
    architecture: &Architecture,
    config: &LlamaConfig,
    file: &dyn ModelFile,
    backend: &mut B,
    progress: &mut dyn FnMut(LoadProgress<'_>),
) -> Result<Bound<B>, LoadError> {
    let inventory = Inventory::take(architecture, config, file)?;
    let packed_bytes = inventory.packed_bytes(backend);
    let mut binder = Binder {
        bytes: inventory.tensors.values().map(|t| t.data.len() as u64).sum(),
        inventory: &inventory,
        backend,
        progress,
        tensors_done: 0,
        bytes_done: 0,
    };
    let factors = if inventory.tensors.contains_key(ROPE_FACTORS) {
        Some(binder.values(ROPE_FACTORS)?)
    } else {
        None
    };
    let inverse_frequencies = inverse_frequencies(
        config.rope_base,
        config.rotary_dims,
        config.rope_scaling,
        factors.as_deref(),
    )?;
    let embedding = binder.matrix(EMBEDDING)?;
    let layers = (0..config.layers)
        .map(|layer| binder.layer(architecture, layer))
        .collect::<Result<_, _>>()?;
    let norm = binder.vector(NORM)?;
    let head = if inventory.tied { None } else { Some(binder.matrix(HEAD)?) };
    binder.report("");
    let weights = Weights { embedding, layers, norm, head };
    Ok(Bound { weights, inverse_frequencies, packed_bytes })
}

struct Binder<'a, B: Ops> {
    inventory: &'a Inventory<'a>,
    backend: &'a mut B,
    progress: &'a mut dyn FnMut(LoadProgress<'_>),
    tensors_done: usize,
    bytes_done: u64,
    bytes: u64,
}

impl<B: Ops> Binder<'_, B> {
    fn report(&mut self, tensor: &str) {
        (self.progress)(LoadProgress {
            tensor,
            tensors_done: self.tensors_done,
            tensors: self.inventory.tensors.len(),
            bytes_done: self.bytes_done,
            bytes: self.bytes,
        });
    }

    /// Reports and counts a tensor of the inventory while `bind` takes it.
    fn take<T>(
        &mut self,
        name: &str,
        bind: impl FnOnce(&mut B, &FileTensor<'_>) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        self.report(name);
        let tensor = &self.inventory.tensors[name];
        let bound = bind(self.backend, tensor)?;
        self.tensors_done += 1;
        self.bytes_done += tensor.data.len() as u64;
        Ok(bound)
    }

    fn matrix(&mut self, name: &str) -> Result<B::Matrix, LoadError> {
        self.take(name, |backend, tensor| {
            let &FileTensor { name, format, ref shape, data, .. } = tensor;
            let source = MatrixSource { name, format, rows: shape[0], cols: shape[1], data };
            backend.load_matrix(&source).map_err(|e| refused(name, e))
        })
    }

    fn values(&mut self, name: &str) -> Result<Vec<f32>, LoadError> {
        self.take(name, |_, tensor| {
            let mut values = vec![0.0; tensor.elements()];
            decode_row(tensor.format, tensor.data, &mut values).map_err(|e| {
                LoadError::TensorData { name: name.to_owned(), detail: e.to_string() }
            })?;
            tensor.reading.apply(&mut values);
            Ok(values)
        })
    }

    fn vector(&mut self, name: &str) -> Result<B::Vector, LoadError> {
        let values = self.values(name)?;
        self.backend.load_vector(&values).map_err(|e| refused(name, e))
    }

    fn layer(&mut self, architecture: &Architecture, layer: usize) -> Result<Layer<B>, LoadError> {
        let name = |name: &str| layer_tensor(layer, name);
        let projection = |binder: &mut Self, part: &str| {
            let matrix = binder.matrix(&name(&format!("{part}.weight")))?;
            let bias = if architecture.qkv_bias {
                Some(binder.vector(&name(&format!("{part}.bias")))?)
            } else {
                None
            };
            Ok::<_, LoadError>(Projection { matrix, bias })
        };
        Ok(Layer {
            attention_norm: self.vector(&name("attn_norm.weight"))?,
            q: projection(self, "attn_q")?,
            k: projection(self, "attn_k")?,
            v: projection(self, "attn_v")?,
            head_norms: if architecture.head_norm {
                let q_norm = self.vector(&name("attn_q_norm.weight"))?;
                Some((q_norm, self.vector(&name("attn_k_norm.weight"))?))
            } else {
                None
            },
            output: self.matrix(&name("attn_output.weight"))?,
            mlp_norm: self.vector(&name("ffn_norm.weight"))?,
            gate: self.matrix(&name("ffn_gate.weight"))?,
            up: self.matrix(&name("ffn_up.weight"))?,
            down: self.matrix(&name("ffn_down.weight"))?,
        })
    }
}

fn refused(name: &str, source: OpError) -> LoadError {
    LoadError::Backend { name: name.to_owned(), source }
}
