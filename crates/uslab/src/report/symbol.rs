//! Code addresses for people: the file and the offset in it, and the function where the file
//! exports it. `addr2line -e FILE OFFSET` finds the source line.

use crate::os::unwind::{self, Object};
use core::fmt;

/// A code address, and the object that contains it.
pub struct Place {
    pc: usize,
    object: Option<Object>,
}

impl Place {
    /// The place of a return address.
    pub fn of(pc: usize) -> Place {
        Place { pc, object: unwind::find(pc) }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(object) = &self.object else { return write!(f, "{:#x}", self.pc) };
        if object.is_program() {
            let mut path = [0; 256];
            write_bytes(f, crate::os::file::own_path(&mut path))?;
        } else {
            write_bytes(f, object.name.to_bytes())?;
        }
        write!(f, "+{:#x}", self.pc.wrapping_sub(object.base))?;
        if let Some((name, offset)) = unwind::function_at(object, self.pc - 1) {
            f.write_str(" (")?;
            write_bytes(f, name)?;
            write!(f, "+{:#x})", offset + 1)?;
        }
        Ok(())
    }
}

fn write_bytes(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    for chunk in bytes.utf8_chunks() {
        f.write_str(chunk.valid())?;
        if !chunk.invalid().is_empty() {
            f.write_str("?")?;
        }
    }
    Ok(())
}
