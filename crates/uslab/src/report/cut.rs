//! The end of a JSON report that was cut: a reader gets a whole object, without the parts for which
//! there was no room.

/// The last member of an object that was cut.
const MARK: &[u8] = b",\"cut\":true";
/// The same without other members.
const MARK_ALONE: &[u8] = b"{\"cut\":true}\n";

/// Containers that a report nests in each other, at most.
const MAX_DEPTH: usize = 8;

/// A place where the text may end: what is before is complete but for the ends of `depth`
/// containers.
#[derive(Clone, Copy)]
struct Place {
    used: usize,
    depth: usize,
    ends: [u8; MAX_DEPTH],
}

/// Cuts `text`, which is the start of an object, behind its last complete value for which there is
/// room with the end of the object. Writes that end, and returns the bytes of the text.
///
/// `buffer` contains the text in its first `used` bytes, and has room for an object without other
/// members.
pub fn end(buffer: &mut [u8], used: usize) -> usize {
    let Some(place) = last_place(&buffer[..used], buffer.len()) else {
        buffer[..MARK_ALONE.len()].copy_from_slice(MARK_ALONE);
        return MARK_ALONE.len();
    };
    let mut used = place.used;
    let mut put = |bytes: &[u8]| {
        buffer[used..used + bytes.len()].copy_from_slice(bytes);
        used += bytes.len();
    };
    for depth in (1..place.depth).rev() {
        put(&[place.ends[depth]]);
    }
    put(MARK);
    put(b"}\n");
    used
}

/// The last place in `text` where it may end, in a buffer of `room` bytes.
fn last_place(text: &[u8], room: usize) -> Option<Place> {
    let (mut found, mut depth, mut ends) = (None, 0, [0; MAX_DEPTH]);
    let (mut is_string, mut is_escaped) = (false, false);
    for (at, &byte) in text.iter().enumerate() {
        if is_string {
            is_string = is_escaped || byte != b'"';
            is_escaped = byte == b'\\' && !is_escaped;
            continue;
        }
        let used = match byte {
            b'"' => {
                is_string = true;
                continue;
            }
            b'{' | b'[' => {
                *ends.get_mut(depth)? = if byte == b'{' { b'}' } else { b']' };
                depth += 1;
                continue;
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                at + 1
            }
            b',' => at,
            _ => continue,
        };
        // The ends of all containers, the mark and a line end.
        if depth > 0 && used + depth + MARK.len() < room {
            found = Some(Place { used, depth, ends });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    /// The end of the JSON value that starts at `at`; `None` if there is none.
    fn value(text: &[u8], at: usize) -> Option<usize> {
        match text.get(at)? {
            b'"' => {
                let mut at = at + 1;
                while *text.get(at)? != b'"' {
                    at += if text[at] == b'\\' { 2 } else { 1 };
                }
                Some(at + 1)
            }
            b'{' | b'[' => {
                let (is_object, mut at) = (text[at] == b'{', at + 1);
                loop {
                    if is_object {
                        at = value(text, at).filter(|&end| text.get(end) == Some(&b':'))? + 1;
                    }
                    at = value(text, at)? + 1;
                    match text.get(at - 1)? {
                        b',' => {}
                        b'}' if is_object => return Some(at),
                        b']' if !is_object => return Some(at),
                        _ => return None,
                    }
                }
            }
            _ => {
                let is_plain = |byte: &u8| byte.is_ascii_alphanumeric();
                let n = text[at..].iter().take_while(|byte| is_plain(byte)).count();
                (n > 0).then_some(at + n)
            }
        }
    }

    #[test]
    fn an_object_that_is_cut_anywhere_is_an_object() {
        let parts = [
            r#"{"fault":"a \"b\\","stack":["x","y,}"],"object":{"bytes":12,"state":"free"},"#,
            r#""in":{"of":["z"],"n":1}}"#,
        ];
        let whole = parts.concat();
        let whole = whole.as_bytes();
        assert_eq!(value(whole, 0), Some(whole.len()));
        for used in 0..whole.len() {
            for room in used + 1..used + 40 {
                let mut buffer = vec![0; room.max(MARK_ALONE.len())];
                buffer[..used].copy_from_slice(&whole[..used]);
                let n = end(&mut buffer, used);
                let text = &buffer[..n];
                assert_eq!(value(text, 0), Some(n - 1), "{}", text.escape_ascii());
                assert!(text.ends_with(b"\"cut\":true}\n"), "{}", text.escape_ascii());
            }
        }
    }
}
