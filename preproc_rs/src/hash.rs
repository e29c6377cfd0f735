//! The two hashes of the contract, both blake3-256 in lower-case hex.
//!
//! `item_hash` names patch rows for the engine's prefix cache (engine/wire.py computes the same). `source_key` names
//! (file, options, preprocessing version) for the gateway's cache; it never travels.

use crate::courtesy;
use crate::limits::PREPROCESS_VERSION;
use blake3::Hasher;

const ITEM_DOMAIN: &[u8] = b"catalejo-patches-1\0";
const SOURCE_DOMAIN: &[u8] = b"catalejo-source-1\0";

/// Over domain, modality, grid (3 x u32 LE), rows, t_dup (u8) and the raw rows; text fields end with a zero byte.
pub fn item_hash(modality: &str, grid: [usize; 3], rows: &str, t_dup: u8, data: &[u8]) -> String {
    let mut hasher = Hasher::new();
    hasher.update(ITEM_DOMAIN).update(modality.as_bytes()).update(&[0]);
    for side in grid {
        hasher.update(&(side as u32).to_le_bytes());
    }
    hasher.update(rows.as_bytes()).update(&[0, t_dup]);
    update(&mut hasher, data);
    hasher.finalize().to_hex().to_string()
}

/// `options` is the canonical text of everything that changes the rows.
pub fn source_key(options: &str, data: &[u8]) -> String {
    let mut hasher = Hasher::new();
    hasher.update(SOURCE_DOMAIN).update(PREPROCESS_VERSION.as_bytes()).update(&[0]);
    hasher.update(options.as_bytes()).update(&[0]);
    update(&mut hasher, data);
    hasher.finalize().to_hex().to_string()
}

/// Of the two together, for names that never leave the gateway.
pub fn digest(prefix: &[u8], data: &[u8]) -> [u8; 32] {
    let mut hasher = Hasher::new();
    hasher.update(prefix);
    update(&mut hasher, data);
    *hasher.finalize().as_bytes()
}

fn update(hasher: &mut Hasher, data: &[u8]) {
    for piece in courtesy::pieces(data) {
        hasher.update(piece);
    }
}
