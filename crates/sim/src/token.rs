//! Tokens as hashes: of the whole prefix, and of everything else that a draw depends on.

use laneway_execution::{SamplingKey, TokenCount, TokenId};

/// Hash of a prefix, extended token by token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    hash: u64,
    length: u64,
}

impl Prefix {
    /// Hash of `tokens`.
    #[must_use]
    pub fn of(tokens: &[TokenId]) -> Self {
        let mut prefix = Self::default();
        for &token in tokens {
            prefix.push(token);
        }
        prefix
    }

    /// Appends a token.
    pub fn push(&mut self, token: TokenId) {
        self.hash = mix(self.hash ^ mix(u64::from(token) ^ (self.length << 32)));
        self.length += 1;
    }

    /// Tokens of the prefix.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// True if there is no token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.hash.to_le_bytes());
        bytes[8..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (hash, length) = bytes.split_first_chunk()?;
        let length = <[u8; 8]>::try_from(length).ok()?;
        Some(Self { hash: u64::from_le_bytes(*hash), length: u64::from_le_bytes(length) })
    }

    /// Length of the bytes.
    pub(crate) const BYTES: usize = 16;
}

/// A coin that shows heads with this probability, the same one for equal `parts`.
pub(crate) fn coin(parts: &[u64], probability: f64) -> bool {
    let hash = parts.iter().fold(0xc01, |hash, &part| mix(hash ^ part));
    ((mix(hash) >> 11) as f64) < probability * (1u64 << 53) as f64
}

/// The token that a simulated model draws after `prefix`.
#[must_use]
pub fn draw(
    prefix: Prefix,
    key: SamplingKey,
    counts: &[TokenCount],
    biases: &[(TokenId, f32)],
    vocab_size: usize,
) -> TokenId {
    let mut hash = mix(prefix.hash ^ mix(key.seed ^ mix(key.position)));
    // A sum, so that the order of the entries does not matter.
    for count in counts {
        let entry = u64::from(count.token) << 32 | u64::from(count.generated);
        hash = hash.wrapping_add(mix(entry ^ 0x5eed));
    }
    for (token, bias) in biases {
        hash = hash.wrapping_add(mix(u64::from(*token) << 32 | u64::from(bias.to_bits())));
    }
    (mix(hash) % vocab_size.max(1) as u64) as TokenId
}

/// Log probability of `token` after `prefix` in a simulated model: any number that tells them.
#[must_use]
pub fn score(prefix: Prefix, token: TokenId) -> f32 {
    // 23 bits are exact in a float.
    -((mix(prefix.hash ^ u64::from(token)) >> 41) as f32 / (1 << 20) as f32)
}

/// Spreads every bit over all bits (the finalizer of splitmix64).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_prefix() {
        let prefix = Prefix::of(&[3, 1, 4]);
        assert_eq!(Prefix::from_bytes(&prefix.to_bytes()), Some(prefix));
        assert_eq!((Prefix::from_bytes(&[0; 15]), Prefix::from_bytes(&[0; 17])), (None, None));
        assert_eq!((prefix.len(), Prefix::default().is_empty()), (3, true));
    }

    #[test]
    fn coins_keep_to_their_probability() {
        let heads = (0..1000).filter(|&toss| coin(&[7, toss], 0.3)).count();
        assert!((250..350).contains(&heads), "{heads} of 1000");
        assert!(coin(&[1], 1.0) && !coin(&[1], 0.0));
    }

    #[test]
    fn order_and_length_count() {
        assert_ne!(Prefix::of(&[1, 2]), Prefix::of(&[2, 1]));
        assert_ne!(Prefix::of(&[0]), Prefix::of(&[0, 0]));
        let mut grown = Prefix::of(&[1]);
        grown.push(2);
        assert_eq!(grown, Prefix::of(&[1, 2]));
    }
}
