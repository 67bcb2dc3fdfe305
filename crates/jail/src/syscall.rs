//! The system call instruction itself: no C library, no `errno`, nothing but `core`.
//!
//! Compiled twice: into this crate, where code between `clone` and `execve` must not touch memory
//! of a thread it shares with another process, and into the init program, which has no C library.

use core::arch::asm;

/// Makes one system call and returns what the kernel returned: a negative number is an error.
///
/// # Safety
/// As for the call itself: pointers among the arguments must be valid for what the kernel does.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn raw(number: usize, args: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = args;
    let result: isize;
    // SAFETY: the caller vouches for the arguments; the kernel changes only these registers.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// As above.
///
/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn raw(number: usize, args: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = args;
    let result: isize;
    // SAFETY: as above.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => result,
            in("x1") b,
            in("x2") c,
            in("x3") d,
            in("x4") e,
            in("x5") f,
            options(nostack),
        );
    }
    result
}
