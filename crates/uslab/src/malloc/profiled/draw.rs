//! The random draws of the heap profile: distances between samples, and what a sample stands for.
//!
//! Samples are a Poisson process over the allocated bytes: each byte is hit with the probability
//! `1 / period`, and an allocation is a sample if one of its bytes is hit. The distance from one
//! hit to the next has an exponential distribution, which has no memory.

use crate::os;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Draws so far.
static DRAWS: AtomicU64 = AtomicU64::new(0);

/// The logarithm of 2.
const LN_2: f64 = core::f64::consts::LN_2;

/// A distance in bytes from an exponential distribution with the mean `period_bytes`.
fn exponential(period_bytes: f64) -> f64 {
    let bits = os::random::at(DRAWS.fetch_add(1, Relaxed) ^ (0x70_726f_6669_6c65 << 8)) >> 11;
    // From (0, 1]: the logarithm is finite.
    let uniform = (bits + 1) as f64 / (1u64 << 53) as f64;
    -ln(uniform) * period_bytes
}

/// The number of the next sampled allocation, 1 or more, among allocations of `bytes` bytes each.
pub fn distance_in_objects(period_bytes: u64, bytes: usize) -> u32 {
    let objects = exponential(period_bytes as f64) / bytes.max(1) as f64;
    // A conversion saturates.
    (objects as u32).saturating_add(1)
}

/// A distance in bytes, 1 or more.
#[cold]
#[inline(never)]
pub fn distance_in_bytes(period_bytes: u64) -> u64 {
    (exponential(period_bytes as f64) as u64).saturating_add(1)
}

/// Allocations of `bytes` bytes that one sample stands for, in units of 1 / 65 536: the inverse of
/// the probability that an allocation is a sample.
pub fn weight(period_bytes: u64, bytes: usize) -> u64 {
    let probability = 1.0 - exp_of_minus(bytes.max(1) as f64 / period_bytes.max(1) as f64);
    (65536.0 / probability + 0.5) as u64
}

/// The natural logarithm of a number in (0, 1]. `core` has none.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i64 - 1023;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    // ln m = 2 artanh ((m - 1) / (m + 1)), for m from 1 to 2.
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let (mut term, mut sum, mut odd) = (z, z, 1.0);
    for _ in 0..14 {
        term *= z * z;
        odd += 2.0;
        sum += term / odd;
    }
    exponent as f64 * LN_2 + 2.0 * sum
}

/// `exp(-x)` for `x` of 0 or more. Exact enough for `1 - exp(-x)` down to one byte in 2^32.
fn exp_of_minus(x: f64) -> f64 {
    if x > 40.0 {
        return 0.0;
    }
    // Halve the argument until the series is short, and square the result as often.
    let (mut y, mut halvings) = (x, 0);
    while y > 0.25 {
        y /= 2.0;
        halvings += 1;
    }
    let (mut term, mut sum) = (1.0, 1.0);
    for n in 1..12 {
        term *= -y / f64::from(n);
        sum += term;
    }
    (0..halvings).for_each(|_| sum *= sum);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm_and_exponential_agree_with_the_standard_library() {
        for n in 1..=1000 {
            let x = f64::from(n) / 1000.0;
            assert!((ln(x) - x.ln()).abs() < 1e-12, "ln {x}");
            let y = f64::from(n) / 20.0;
            assert!((exp_of_minus(y) - (-y).exp()).abs() < 1e-13, "exp -{y}");
        }
        assert!((ln(1.0 / (1u64 << 53) as f64) + 53.0 * LN_2).abs() < 1e-12);
    }

    #[test]
    fn distances_have_the_mean_and_the_spread_of_an_exponential() {
        const N: usize = 200_000;
        let draws: std::vec::Vec<f64> =
            (0..N).map(|_| distance_in_bytes(1 << 19) as f64 / (1u64 << 19) as f64).collect();
        let mean = draws.iter().sum::<f64>() / N as f64;
        let variance = draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / N as f64;
        assert!((mean - 1.0).abs() < 0.02 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }

    #[test]
    fn the_weight_is_the_inverse_of_the_probability() {
        for (period, bytes) in [(1 << 19, 16), (1 << 19, 1 << 20), (4096, 4096), (1, 1), (1 << 40, 16)] {
            let exact = -1.0 / (-(bytes as f64) / period as f64).exp_m1();
            let has = weight(period, bytes) as f64 / 65536.0;
            assert!((has / exact - 1.0).abs() < 1e-4, "{period} {bytes}: {has} {exact}");
        }
    }
}
