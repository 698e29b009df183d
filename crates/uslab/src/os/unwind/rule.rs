//! Rules: how to get from a frame to its caller's.

/// The rule of one code address, in a word. The CFA is the value of the stack pointer before the
/// call; the caller's registers were saved at distances from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule(pub u64);

const FROM_FP: u64 = 1;
const SAVES_FP: u64 = 2;
const SAVES_RETURN: u64 = 4;
const IS_RULE: u64 = 8;
const CFA_SHIFT: u32 = 4;
const CFA_BITS: u32 = 24;
const FP_SHIFT: u32 = CFA_SHIFT + CFA_BITS;
const WORD_BITS: u32 = 18;
const RETURN_SHIFT: u32 = FP_SHIFT + WORD_BITS;

impl Rule {
    /// The walk ends here.
    pub const NONE: Rule = Rule(0);

    /// A rule: the CFA is the frame pointer or the stack pointer plus `cfa`, and the registers were
    /// saved at these distances from it. [`Rule::NONE`] if a number does not fit.
    pub fn new(is_from_fp: bool, cfa: i64, fp: Option<i64>, link: Option<i64>) -> Rule {
        let (Some(cfa), Some(fp_word), Some(return_word)) = (field(cfa, CFA_BITS), word(fp), word(link))
        else {
            return Rule::NONE;
        };
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        Rule(
            IS_RULE
                | flag(is_from_fp, FROM_FP)
                | flag(fp.is_some(), SAVES_FP)
                | flag(link.is_some(), SAVES_RETURN)
                | cfa << CFA_SHIFT
                | fp_word << FP_SHIFT
                | return_word << RETURN_SHIFT,
        )
    }

    /// The rule of a word; `None` for the word of [`Rule::NONE`].
    pub fn of_word(word: u64) -> Option<Rule> {
        (word & IS_RULE != 0).then_some(Rule(word))
    }

    /// Whether the CFA is counted from the frame pointer, not from the stack pointer.
    pub fn is_from_fp(self) -> bool {
        self.0 & FROM_FP != 0
    }

    /// Bytes from that register to the CFA.
    pub fn cfa_offset(self) -> isize {
        self.field(CFA_SHIFT, CFA_BITS)
    }

    /// Bytes from the CFA to the caller's frame pointer; `None` if the register still has it.
    pub fn fp_offset(self) -> Option<isize> {
        (self.0 & SAVES_FP != 0).then(|| self.field(FP_SHIFT, WORD_BITS) * 8)
    }

    /// Bytes from the CFA to the return address; `None` if the link register has it.
    pub fn return_offset(self) -> Option<isize> {
        (self.0 & SAVES_RETURN != 0).then(|| self.field(RETURN_SHIFT, WORD_BITS) * 8)
    }

    fn field(self, shift: u32, bits: u32) -> isize {
        ((self.0 << (64 - shift - bits)) as i64 >> (64 - bits)) as isize
    }
}

/// `value` as a signed field of `bits` bits, if it fits.
fn field(value: i64, bits: u32) -> Option<u64> {
    let kept = value << (64 - bits) >> (64 - bits);
    (kept == value).then_some(value as u64 & ((1 << bits) - 1))
}

fn word(offset: Option<i64>) -> Option<u64> {
    let offset = offset.unwrap_or(0);
    if offset % 8 == 0 { field(offset / 8, WORD_BITS) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_keeps_its_numbers() {
        let rule = Rule::new(true, 0x7f_fff0, Some(-16), Some(-8));
        assert!(rule.is_from_fp());
        assert_eq!(
            (rule.cfa_offset(), rule.fp_offset(), rule.return_offset()),
            (0x7f_fff0, Some(-16), Some(-8))
        );
        let rule = Rule::new(false, 8, None, Some(-8));
        assert!(!rule.is_from_fp());
        assert_eq!((rule.cfa_offset(), rule.fp_offset(), rule.return_offset()), (8, None, Some(-8)));
        assert_eq!(Rule::new(false, 1 << 30, None, None), Rule::NONE);
        assert_eq!(Rule::new(false, 8, Some(-12), None), Rule::NONE);
    }
}
