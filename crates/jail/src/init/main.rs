//! The init program: what pid 1 of a jail executes before anyone else runs in there.
//!
//! A static program without a C library, built by `build.rs` and carried in the crate as bytes. It
//! holds nothing of the supervisor: its memory is its own, its arguments are erased first thing, it
//! has no environment, and its descriptors are the control socket and, if there is one, the socket
//! of the socket broker. What it does is in `watch.rs`.

#![no_std]
#![no_main]

#[path = "../syscall.rs"]
mod syscall;
mod watch;

use core::arch::naked_asm;

/// Nothing here panics; if something did, the jail would end with its pid 1.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    watch::leave(1)
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    naked_asm!("mov rdi, rsp", "and rsp, -16", "call {enter}", "ud2", enter = sym enter)
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    naked_asm!("mov x0, sp", "bl {enter}", "brk 0", enter = sym enter)
}

/// Starts with the stack as the kernel left it: the number of arguments, then pointers to them.
extern "C" fn enter(stack: *const usize) -> ! {
    // SAFETY: the kernel puts at least one argument there, because jails pass exactly one, of
    // exactly this length; it is writable memory of this process.
    let argument = unsafe {
        let argument = stack.add(1).read() as *mut u8;
        core::slice::from_raw_parts_mut(argument, watch::Orders::LENGTH)
    };
    let orders = watch::Orders::decode(argument);
    // `/proc/1/cmdline` shows this memory.
    argument.fill(0);
    watch::run(orders)
}

/// Fills memory, for code that the compiler makes of loops and slices.
///
/// # Safety
/// `to` must be valid for `count` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
    let mut at = 0;
    while at < count {
        // SAFETY: within the range the caller vouches for. Volatile, or this would become a call
        // of itself.
        unsafe { to.add(at).write_volatile(byte as u8) };
        at += 1;
    }
    to
}

/// Copies memory, as above.
///
/// # Safety
/// Both must be valid for `count` bytes and not overlap.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    let mut at = 0;
    while at < count {
        // SAFETY: as above.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
        at += 1;
    }
    to
}
