//! Limits on held memory as text: `SOFT` or `SOFT,HARD`, in bytes or percent.

/// A bound on memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// Of this many bytes; 0 is no bound.
    Bytes(u64),
    /// Of this part of the memory that the process may use: 1 to 100.
    Percent(u8),
}

/// The limits on held memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    /// Above it the background reclaims.
    pub soft: Amount,
    /// Above it an allocation fails.
    pub hard: Amount,
}

impl Limit {
    /// The limits of a text.
    ///
    /// # Errors
    /// Returns why the text has no meaning.
    pub fn parse(text: &[u8]) -> Result<Limit, &'static str> {
        let limit = amounts(text).ok_or("it is no SOFT or SOFT,HARD in bytes or percent")?;
        let is_above = match (limit.soft, limit.hard) {
            (Amount::Bytes(soft), Amount::Bytes(hard)) => hard != 0 && soft > hard,
            (Amount::Percent(soft), Amount::Percent(hard)) => soft > hard,
            _ => false,
        };
        if is_above { Err("the soft limit is above the hard one") } else { Ok(limit) }
    }

    /// The limits in bytes, where the process may use as much as `memory_bytes` returns; only a
    /// percentage asks. A soft limit above the hard one is the hard one.
    pub fn bytes(self, memory_bytes: impl Fn() -> u64) -> (usize, usize) {
        let of = |amount| match amount {
            Amount::Bytes(bytes) => usize::try_from(bytes).unwrap_or(usize::MAX),
            Amount::Percent(percent) => {
                let bytes = u128::from(memory_bytes()) * u128::from(percent) / 100;
                usize::try_from(bytes).unwrap_or(usize::MAX)
            }
        };
        let (soft, hard) = (of(self.soft), of(self.hard));
        (if hard == 0 { soft } else { soft.min(hard) }, hard)
    }
}

fn amounts(text: &[u8]) -> Option<Limit> {
    let text = core::str::from_utf8(text).ok()?;
    let (soft, hard) = text.split_once(',').unwrap_or((text, "0"));
    Some(Limit { soft: amount(soft)?, hard: amount(hard)? })
}

fn amount(text: &str) -> Option<Amount> {
    let text = text.trim_ascii();
    if let Some(percent) = text.strip_suffix('%') {
        return percent.parse().ok().filter(|percent| (1..=100).contains(percent)).map(Amount::Percent);
    }
    let shift = match text.bytes().last()? {
        b'K' | b'k' => 10,
        b'M' | b'm' => 20,
        b'G' | b'g' => 30,
        b'T' | b't' => 40,
        _ => 0,
    };
    let digits = if shift > 0 { &text[..text.len() - 1] } else { text };
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(1 << shift).map(Amount::Bytes)
}
