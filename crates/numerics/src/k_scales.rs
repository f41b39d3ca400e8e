//! The 12 bytes in which Q4_K and Q5_K keep eight 6-bit scales and eight 6-bit minima.
//!
//! For sub-block `j` below 4, byte `j` holds the scale and byte `j + 4` the minimum in their low
//! six bits. For the others, byte `j + 4` holds the low four bits of the scale (low nibble) and of
//! the minimum (high nibble), and their two upper bits are bits 6 and 7 of bytes `j - 4` and `j`.

/// Scale and minimum of sub-block `j`, below 8.
pub(crate) const fn unpack(packed: &[u8; 12], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let scale = packed[j + 4] & 0x0f | packed[j - 4] >> 6 << 4;
        let min = packed[j + 4] >> 4 | packed[j] >> 6 << 4;
        (scale, min)
    }
}

/// Packs eight scales and minima below 64; the inverse of [`unpack`].
pub(crate) fn pack(scales: &[(u8, u8); 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        let (scale, min) = scales[j];
        let (late_scale, late_min) = scales[j + 4];
        packed[j] = scale | late_scale >> 4 << 6;
        packed[j + 4] = min | late_min >> 4 << 6;
        packed[j + 8] = late_scale & 0x0f | (late_min & 0x0f) << 4;
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_survives_packing() {
        for bit in 0..6 {
            for j in 0..8 {
                let mut scales = [(0, 0); 8];
                scales[j] = (1 << bit, 0);
                assert_eq!(std::array::from_fn(|j| unpack(&pack(&scales), j)), scales);
                scales[j] = (0, 1 << bit);
                assert_eq!(std::array::from_fn(|j| unpack(&pack(&scales), j)), scales);
            }
        }
    }
}
