//! Weak references to functions of the C++ library: null in a program without it, or in which a
//! plug-in brings it.
//!
//! The loader resolves each name when it binds this library, before any code of it runs. Before
//! glibc 2.34 few programs have `dlsym`, which would find the functions later.

/// `std::get_new_handler`.
pub type GetNewHandler = extern "C" fn() -> Option<extern "C-unwind" fn()>;
/// `std::__throw_bad_alloc`.
pub type ThrowBadAlloc = extern "C-unwind" fn() -> !;

/// The functions, in the order of the assembly below.
#[repr(C)]
pub struct Functions {
    pub get_new_handler: Option<GetNewHandler>,
    pub throw_bad_alloc: Option<ThrowBadAlloc>,
}

core::arch::global_asm!(
    ".weak _ZSt15get_new_handlerv",
    ".weak _ZSt17__throw_bad_allocv",
    ".pushsection .data.rel.ro.uslab_weak_cxx, \"aw\", @progbits",
    ".hidden uslab_weak_cxx",
    ".globl uslab_weak_cxx",
    ".balign 8",
    "uslab_weak_cxx:",
    ".quad _ZSt15get_new_handlerv, _ZSt17__throw_bad_allocv",
    ".popsection",
);

// SAFETY: the table above has this type.
unsafe extern "C" {
    static uslab_weak_cxx: Functions;
}

pub fn functions() -> &'static Functions {
    // SAFETY: the table above has as many words as fields. The loader binds it before any code of
    // the library runs, and it is never written afterwards. A null word is `None`.
    unsafe { &uslab_weak_cxx }
}
