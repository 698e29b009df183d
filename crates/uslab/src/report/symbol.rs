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

impl Place {
    /// Writes the path of the object's file; nothing where the object is not known.
    pub fn write_file(&self, out: &mut impl fmt::Write) -> fmt::Result {
        match &self.object {
            Some(object) if object.is_program() => {
                let mut path = [0; 256];
                write_bytes(out, crate::os::file::own_path(&mut path))
            }
            Some(object) => write_bytes(out, object.name.to_bytes()),
            None => Ok(()),
        }
    }

    /// The exported function that contains the call, and the distance from its start.
    pub fn function(&self) -> Option<(&'static [u8], usize)> {
        unwind::function_at(self.object.as_ref()?, self.pc - 1)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(object) = &self.object else { return write!(f, "{:#x}", self.pc) };
        self.write_file(f)?;
        write!(f, "+{:#x}", self.pc.wrapping_sub(object.base))?;
        if let Some((name, offset)) = self.function() {
            f.write_str(" (")?;
            write_bytes(f, name)?;
            write!(f, "+{:#x})", offset + 1)?;
        }
        Ok(())
    }
}

fn write_bytes(f: &mut impl fmt::Write, bytes: &[u8]) -> fmt::Result {
    for chunk in bytes.utf8_chunks() {
        f.write_str(chunk.valid())?;
        if !chunk.invalid().is_empty() {
            f.write_str("?")?;
        }
    }
    Ok(())
}
