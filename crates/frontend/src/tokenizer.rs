//! Byte-level BPE (Sennrich et al. 2016, arXiv 1508.07909) over the `tokenizers` library.

use crate::bytes::Decoder;
use crate::pre;
use std::collections::HashMap;
use std::fmt;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::{AddedToken, Tokenizer as Library};

/// Texts that end a generation in known families, whatever the file declares.
const END_TEXTS: [&str; 4] = ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>"];

/// A text of more bytes is encoded by pieces of about this size.
const PIECE_BYTES: usize = 16 << 10;

/// A run of more bytes without a place to cut is cut here, whatever that does to its tokens.
const WORD_BYTES_MAX: usize = 32 << 10;

/// Kinds of vocabulary entries, as GGUF numbers them.
pub(crate) mod kind {
    pub const CONTROL: i64 = 3;
    pub const USER_DEFINED: i64 = 4;
    pub const UNUSED: i64 = 5;
}

/// What a tokenizer is made from.
#[derive(Clone, Debug, Default)]
pub struct TokenizerSource {
    /// Name of the pre-tokenizer.
    pub pre: String,
    /// All pieces, by id, in the byte-level alphabet.
    pub tokens: Vec<String>,
    /// Kind of each piece; empty = all normal.
    pub kinds: Vec<i64>,
    /// Merges, best first: two pieces with a space between them.
    pub merges: Vec<String>,
    /// Begins a text, if the model wants that.
    pub bos: Option<u32>,
    /// Tokens that the file declares to end a generation.
    pub ends: Vec<u32>,
}

/// Why a tokenizer could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A metadata entry is missing or of another type.
    #[error("tokenizer metadata: {0}")]
    Metadata(String),
    /// The kind of tokenizer or pre-tokenizer is unknown.
    #[error("{what} {found:?} is not known (known: {known})")]
    Unknown {
        /// What has an unknown kind.
        what: &'static str,
        /// The kind found.
        found: String,
        /// What is known.
        known: &'static str,
    },
    /// The library refuses the vocabulary.
    #[error("tokenizer: {0}")]
    Library(String),
}

/// A text that could not be encoded.
#[derive(Clone, Debug, thiserror::Error)]
#[error("text of {bytes} bytes cannot be split into tokens: {detail}")]
pub struct EncodeError {
    /// Length of the text.
    pub bytes: usize,
    /// The library's reason.
    pub detail: String,
}

/// Text to tokens and back.
pub struct Tokenizer {
    library: Library,
    /// The bytes of every token.
    pieces: Vec<Box<[u8]>>,
    control: Vec<bool>,
    bos: Option<u32>,
    ends: Vec<u32>,
    /// What stands before each space within a special token: no text is cut after these.
    before_spaces: Vec<Box<[u8]>>,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.pieces.len()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Builds a tokenizer.
    ///
    /// # Errors
    /// An unknown pre-tokenizer, or a vocabulary that does not fit its merges.
    pub fn new(source: TokenizerSource) -> Result<Self, TokenizerError> {
        let TokenizerSource { pre, tokens, kinds, merges, bos, mut ends } = source;
        let library_error = |e: tokenizers::Error| TokenizerError::Library(e.to_string());
        let pre_tokenizer = pre::named(&pre)
            .ok_or(TokenizerError::Unknown {
                what: "pre-tokenizer",
                found: pre.clone(),
                known: pre::KNOWN,
            })?
            .map_err(library_error)?;
        if !kinds.is_empty() && kinds.len() != tokens.len() {
            let (kinds, tokens) = (kinds.len(), tokens.len());
            return Err(TokenizerError::Metadata(format!("{kinds} kinds for {tokens} tokens")));
        }
        let ids: HashMap<&str, u32> = (0u32..).zip(&tokens).map(|(id, t)| (&t[..], id)).collect();
        let split = |merge: &String| {
            merge.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())).ok_or_else(|| {
                TokenizerError::Metadata(format!("merge {merge:?} is not a pair of pieces"))
            })
        };
        let merges = merges.iter().map(split).collect::<Result<Vec<_>, _>>()?;
        for text in END_TEXTS {
            ends.extend(ids.get(text));
        }
        ends.sort_unstable();
        ends.dedup();
        let beyond = ends.iter().chain(&bos).find(|&&id| id as usize >= tokens.len());
        if let Some(id) = beyond {
            let found = tokens.len();
            return Err(TokenizerError::Metadata(format!("token {id} of {found}")));
        }
        let vocabulary: Vocab =
            (0u32..).zip(&tokens).map(|(id, token)| (token.clone(), id)).collect();
        let model = BPE::builder()
            .vocab_and_merges(vocabulary, merges)
            // Llama 3 takes pieces that are whole vocabulary entries as they are.
            .ignore_merges(pre == "llama-bpe")
            .build()
            .map_err(library_error)?;
        let mut library = Library::new(model);
        library.with_pre_tokenizer(Some(pre_tokenizer));
        if pre.starts_with("qwen") {
            // These models were trained on composed characters.
            library.with_normalizer(Some(NFC)).map_err(library_error)?;
        }
        let kind_of = |id: usize| kinds.get(id).copied().unwrap_or_default();
        let added = tokens
            .iter()
            .enumerate()
            .map(|(id, token)| (kind_of(id), token))
            .filter(|&(kind, _)| matches!(kind, kind::CONTROL | kind::USER_DEFINED))
            .map(|(kind, token)| {
                AddedToken::from(token.clone(), kind == kind::CONTROL).normalized(false)
            });
        library.add_special_tokens(added.collect::<Vec<_>>()).map_err(library_error)?;
        let decoder = Decoder::new();
        let piece = |(id, token): (usize, &String)| match kind_of(id) {
            kind::CONTROL | kind::USER_DEFINED => token.as_bytes().into(),
            _ => decoder.bytes(token).unwrap_or_else(|| token.as_bytes().to_vec()).into(),
        };
        let special = |id: &usize| matches!(kind_of(*id), kind::CONTROL | kind::USER_DEFINED);
        let before_spaces = (0..tokens.len())
            .filter(special)
            .flat_map(|id| tokens[id].match_indices(' ').map(move |(at, _)| (id, at)))
            .map(|(id, at)| tokens[id].as_bytes()[..at].into())
            .collect();
        Ok(Tokenizer {
            before_spaces,
            pieces: tokens.iter().enumerate().map(piece).collect(),
            control: (0..tokens.len()).map(|id| kind_of(id) == kind::CONTROL).collect(),
            library,
            bos,
            ends,
        })
    }

    /// Tokens of a text. Special tokens that stand in it as text become themselves; with
    /// `add_special`, a model that wants its texts to begin with a token gets it.
    ///
    /// # Errors
    /// A text on which the split gives up.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, EncodeError> {
        let mut ids: Vec<u32> = self.bos.filter(|_| add_special).into_iter().collect();
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(self.piece_end(rest));
            let encoding = self
                .library
                .encode_fast(piece, false)
                .map_err(|e| EncodeError { bytes: text.len(), detail: e.to_string() })?;
            let skip = usize::from(
                ids.len() == 1 && add_special && encoding.get_ids().first() == self.bos.as_ref(),
            );
            ids.extend_from_slice(&encoding.get_ids()[skip..]);
            rest = after;
        }
        Ok(ids)
    }

    /// Where the next piece of a long text ends.
    ///
    /// The library needs up to 1,500 bytes for each byte it is given, so texts go in by pieces. A
    /// space after something that is no white space begins a word in every known split, and none
    /// looks behind itself; so cutting before it changes no token.
    fn piece_end(&self, text: &str) -> usize {
        if text.len() <= PIECE_BYTES {
            return text.len();
        }
        let bytes = text.as_bytes();
        let most = text.len().min(WORD_BYTES_MAX);
        let in_special = |at: usize| self.before_spaces.iter().any(|b| bytes[..at].ends_with(b));
        let is_cut =
            |&at: &usize| bytes[at] == b' ' && bytes[at - 1].is_ascii_graphic() && !in_special(at);
        (PIECE_BYTES..most).find(is_cut).unwrap_or_else(|| text.floor_char_boundary(most))
    }

    /// Text of tokens; bytes that are no UTF-8 become U+FFFD. Unknown ids have no text.
    #[must_use]
    pub fn decode(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> =
            tokens.iter().flat_map(|&token| self.token_bytes(token)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes of a token; none for an unknown id.
    #[must_use]
    pub fn token_bytes(&self, token: u32) -> &[u8] {
        self.pieces.get(token as usize).map_or(&[], |piece| piece)
    }

    /// Number of tokens.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    /// True for tokens that control the model and are never shown as text.
    #[must_use]
    pub fn is_control(&self, token: u32) -> bool {
        self.control.get(token as usize).is_some_and(|&control| control)
    }

    /// Tokens that end a generation, in order.
    #[must_use]
    pub fn eos(&self) -> &[u32] {
        &self.ends
    }

    /// The token that begins a text, if the model wants one.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }
}
