//! Whether the library will take a setting's value: the command line refuses what the library
//! would ignore.
//!
//! The grammar is the library's own: each other file here is a link to one of the library's.

#[allow(dead_code, reason = "the library uses the rest of it")]
mod config;
#[allow(dead_code, reason = "the library uses the rest of it")]
mod debugging;
#[allow(dead_code, reason = "the library uses the rest of it")]
mod hardening;
#[allow(dead_code, reason = "the library uses the rest of it")]
#[path = "settings.rs"]
mod text;

pub use config::VALUE_BYTES;
use config::{DEBUG, GUARD, LIMIT, READ_AT_START};

/// The text of `USLAB_LIMIT`, or why it has no meaning.
pub fn limit(text: &str) -> Result<String, String> {
    checked(LIMIT, text)
}

/// The text of `USLAB_GUARD`, or why it has no meaning.
pub fn guard(text: &str) -> Result<String, String> {
    checked(GUARD, text)
}

/// The text of `USLAB_DEBUG`, or why it has no meaning.
pub fn debug(text: &str) -> Result<String, String> {
    checked(DEBUG, text)
}

/// The text of `USLAB_CONF`, or why a part of it has no meaning.
pub fn conf(whole: &str) -> Result<String, String> {
    let mut wrong = too_long(whole);
    text::each_setting(whole.as_bytes(), &mut |name, value| {
        let value = String::from_utf8_lossy(value);
        let fault = match text::index_of_setting(name) {
            Some(index) => checked(READ_AT_START[index], &value)
                .err()
                .map(|fault| format!("{}: {fault}", name.escape_ascii())),
            None => Some(format!("there is no setting `{}`", name.escape_ascii())),
        };
        wrong = wrong.take().or(fault);
    });
    wrong.map_or_else(|| Ok(whole.to_owned()), Err)
}

fn checked(name: &str, text: &str) -> Result<String, String> {
    let fault = || text::fault(name, text.as_bytes()).map(|fault| fault.to_string());
    too_long(text).or_else(fault).map_or_else(|| Ok(text.to_owned()), Err)
}

fn too_long(text: &str) -> Option<String> {
    (text.len() > VALUE_BYTES).then(|| format!("longer than {VALUE_BYTES} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_library_takes_passes() {
        for text in ["80%,90%", "1G", "0", "512m,1G"] {
            assert_eq!(limit(text).as_deref(), Ok(text));
        }
        for text in ["1", "all", "20", "all,left,slots=7"] {
            assert_eq!(guard(text).as_deref(), Ok(text));
        }
        assert_eq!(debug("FZ,malloc-*").as_deref(), Ok("FZ,malloc-*"));
        let text = "decay_ms=0,huge_pages=never,guard=all,slots=3,secure=zero,order";
        assert_eq!(conf(text).as_deref(), Ok(text));
    }

    #[test]
    fn a_value_without_a_meaning_is_told() {
        let told = |result: Result<String, String>| result.expect_err("refused");
        assert_eq!(told(limit("1 Gigabyte")), "it is no SOFT or SOFT,HARD in bytes or percent");
        assert_eq!(told(limit("90%,80%")), "the soft limit is above the hard one");
        assert_eq!(
            told(guard("some")),
            "it is neither all nor a number of milliseconds, with left, right or slots=N"
        );
        assert_eq!(told(debug("FQ")), "column 2: 'Q' is none of the letters F, Z, P, U, T");
        assert_eq!(told(conf("decay_ms=0,limits=1G")), "there is no setting `limits`");
        assert_eq!(
            told(conf("decay_ms=soon,rseq=2")),
            "decay_ms: it is no number of milliseconds, and not never"
        );
        assert!(told(conf("secure=maybe")).starts_with("secure: column 1: none of 1, check"));
        assert_eq!(told(debug(&"F".repeat(257))), "longer than 256 bytes");
    }
}
