//! The functions that the memory of an object came from.

/// The functions that memory came from, or goes back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Family {
    /// Any: functions that may free all.
    Any = 0,
    /// A cache's functions.
    Cache = 1,
    /// `malloc`, `calloc`, `realloc`, `free` and their relatives.
    Malloc = 2,
    /// `operator new` and `operator delete`.
    New = 3,
    /// `operator new[]` and `operator delete[]`.
    NewArray = 4,
}

impl Family {
    /// The family with this number; [`Family::Any`] for any other number.
    pub const fn of(number: u8) -> Family {
        match number {
            1 => Family::Cache,
            2 => Family::Malloc,
            3 => Family::New,
            4 => Family::NewArray,
            _ => Family::Any,
        }
    }

    /// Its name in reports, as memory of it.
    pub fn name(self) -> &'static str {
        match self {
            Family::Any => "",
            Family::Cache => "a cache",
            Family::Malloc => "malloc",
            Family::New => "operator new",
            Family::NewArray => "operator new[]",
        }
    }

    /// The name of its functions that free.
    pub fn release_name(self) -> &'static str {
        match self {
            Family::Any | Family::Cache => "a free",
            Family::Malloc => "free",
            Family::New => "operator delete",
            Family::NewArray => "operator delete[]",
        }
    }

    /// Whether memory of this family may be freed by a function of `other`.
    pub fn takes(self, other: Family) -> bool {
        let is_strict = matches!(self, Family::Malloc | Family::New | Family::NewArray);
        !is_strict || other == Family::Any || other == self
    }
}
