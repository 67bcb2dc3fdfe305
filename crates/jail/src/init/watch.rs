//! What the init program does: it reaps, keeps the deadline, looks whether the jail is full, opens
//! sockets for the supervisor, and ends, and everyone with it, when the program has ended.
//!
//! Only `core` and system calls. It has no capability but, with a socket broker, the one to listen
//! on low ports.

use crate::syscall::raw;

/// The control socket.
const CONTROL: usize = 0;
/// Where the program's process waits until init stands: an event counter.
const GATE: usize = 1;
/// The socket of the socket broker, if there is one.
const BROKER: usize = 2;
/// How often it tries whether another process could still be made.
const CROWD_INTERVAL_MS: u64 = 10;

/// What init is to do, as it stands in its one argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Orders {
    /// The program's pid inside.
    pub(crate) program: u64,
    /// When everything ends, on the monotonic clock; the largest number means never.
    pub(crate) deadline_ms: u64,
    /// The program's own limit on processes, if init is to look whether it is met; else zero.
    pub(crate) processes: u64,
    /// One if there is a socket broker.
    pub(crate) broker: u64,
}

impl Orders {
    /// Bytes of the argument, without the zero at its end.
    pub(crate) const LENGTH: usize = 64;

    /// Writes each number as sixteen letters, so that no byte of it is zero.
    pub(crate) fn encode(self) -> [u8; Self::LENGTH + 1] {
        let mut text = [0; Self::LENGTH + 1];
        let numbers = [self.program, self.deadline_ms, self.processes, self.broker];
        for (letters, number) in text.chunks_exact_mut(16).zip(numbers) {
            for (letter, shift) in letters.iter_mut().zip((0..64).step_by(4)) {
                *letter = b'a' + (number >> shift & 0xf) as u8;
            }
        }
        text
    }

    /// Reads what [`Self::encode`] wrote.
    pub(crate) fn decode(text: &[u8]) -> Self {
        let mut numbers = [0_u64; 4];
        for (letters, number) in text.chunks_exact(16).zip(&mut numbers) {
            for (letter, shift) in letters.iter().zip((0..64).step_by(4)) {
                *number |= u64::from(letter.wrapping_sub(b'a') & 0xf) << shift;
            }
        }
        let [program, deadline_ms, processes, broker] = numbers;
        Self { program, deadline_ms, processes, broker }
    }
}

/// The first numbers of messages, as in `message.rs`; a test of the crate compares them.
pub(crate) mod word {
    pub(crate) const FAILED: u32 = 3;
    pub(crate) const ENDED: u32 = 5;
    pub(crate) const OVERDUE: u32 = 6;
    pub(crate) const CROWDED: u32 = 7;
    pub(crate) const SOCKET: u32 = 9;
}

/// Runs init to its end.
pub(crate) fn run(orders: Orders) -> ! {
    // Without these the jail must not begin to run anything.
    if stand(orders).is_none() {
        leave(1);
    }
    let children = signal_descriptor();
    let mut next_try = now_ms() + CROWD_INTERVAL_MS;
    let mut broker = if orders.broker == 1 { BROKER as i32 } else { -1 };
    loop {
        if let Some(status) = reap(orders.program) {
            end_everyone();
            tell(word::ENDED, status);
            leave(0);
        }
        let now = now_ms();
        if now >= orders.deadline_ms {
            tell(word::OVERDUE, 0);
            end_everyone();
            leave(0);
        }
        let mut wake = orders.deadline_ms;
        if orders.processes != 0 {
            if now >= next_try {
                if is_crowded(orders.processes) {
                    tell(word::CROWDED, 0);
                    end_everyone();
                    leave(0);
                }
                next_try = now + CROWD_INTERVAL_MS;
            }
            wake = wake.min(next_try);
        }
        let timeout = if wake == u64::MAX { None } else { Some(wake.saturating_sub(now)) };
        let Woken { supervisor, asked } = wait(children, broker, timeout);
        if supervisor {
            end_everyone();
            leave(0);
        }
        if asked && !serve() {
            broker = -1;
        }
    }
}

/// Closes itself to everyone inside, takes on the program's limit, and lets the program go on.
fn stand(orders: Orders) -> Option<()> {
    const SET_DEATH_SIGNAL: usize = 1;
    const SET_DUMPABLE: usize = 4;
    const SET_NAME: usize = 15;
    const KILL: usize = 9;
    numbers(nr::PRCTL, [SET_DUMPABLE, 0, 0, 0])?;
    numbers(nr::PRCTL, [SET_DEATH_SIGNAL, KILL, 0, 0])?;
    numbers(nr::PRCTL, [SET_NAME, c"init".as_ptr() as usize, 0, 0])?;
    if orders.processes != 0 {
        let limit = [orders.processes; 2];
        // SAFETY: the structure outlives the call; no old value is asked for.
        let _ = unsafe { raw(nr::PRLIMIT64, [0, PROCESSES, limit.as_ptr() as usize, 0, 0, 0]) };
    }
    let one: u64 = 1;
    // SAFETY: eight bytes of a number that outlives the call.
    if unsafe { raw(nr::WRITE, [GATE, &raw const one as usize, 8, 0, 0, 0]) } != 8 {
        return None;
    }
    numbers(nr::CLOSE, [GATE, 0, 0, 0]).map(drop)
}

const PROCESSES: usize = 6;

/// Makes a call whose arguments are numbers or point to what lives for ever.
fn numbers(number: usize, [a, b, c, d]: [usize; 4]) -> Option<usize> {
    // SAFETY: see above.
    usize::try_from(unsafe { raw(number, [a, b, c, d, 0, 0]) }).ok()
}

/// Ends init and so the jail.
pub(crate) fn leave(code: usize) -> ! {
    loop {
        // SAFETY: this call takes a number and does not return.
        unsafe { raw(nr::EXIT_GROUP, [code, 0, 0, 0, 0, 0]) };
    }
}

fn signal_descriptor() -> i32 {
    const CHILD: u64 = 1 << 16;
    const CLOSE_ON_EXEC_AND_NONBLOCKING: usize = 0o2_004_000;
    let mask = CHILD;
    let args = [usize::MAX, &raw const mask as usize, 8, CLOSE_ON_EXEC_AND_NONBLOCKING, 0, 0];
    // SAFETY: the mask has the kernel's size and outlives the call.
    unsafe { raw(nr::SIGNALFD4, args) as i32 }
}

fn now_ms() -> u64 {
    const MONOTONIC: usize = 1;
    let mut now = [0_u64; 2];
    // SAFETY: the structure is valid for writing.
    unsafe { raw(nr::CLOCK_GETTIME, [MONOTONIC, now.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    let [seconds, nanoseconds] = now;
    seconds.saturating_mul(1000).saturating_add(nanoseconds / 1_000_000)
}

/// Reaps every child that has ended; returns the program's status once it is among them.
fn reap(program: u64) -> Option<i32> {
    const WITHOUT_WAITING_FOR_ALL: usize = 0x4000_0001;
    loop {
        let mut status = 0_i32;
        let args = [usize::MAX, &raw mut status as usize, WITHOUT_WAITING_FOR_ALL, 0, 0, 0];
        // SAFETY: the status is valid for writing; no usage is asked for.
        let pid = unsafe { raw(nr::WAIT4, args) };
        if pid <= 0 {
            return None;
        }
        if pid as u64 == program {
            return Some(status);
        }
    }
}

/// Ends everyone and waits for them, so that what they used is counted: the kernel counts nothing
/// of those it ends together with init.
fn end_everyone() {
    const ALL_KINDS: usize = 0x4000_0000;
    const WITHOUT_WAITING: usize = 1;
    const KILL: usize = 9;
    const ROUNDS: usize = 1 << 16;
    let wait = |flags| numbers(nr::WAIT4, [usize::MAX, 0, ALL_KINDS | flags, 0]);
    // Most programs leave nobody behind; then this is all.
    let mut left = wait(WITHOUT_WAITING);
    for _ in 0..ROUNDS {
        if left.is_none() {
            return;
        }
        numbers(nr::KILL, [usize::MAX, KILL, 0, 0]);
        left = wait(0);
    }
}

/// Returns whether not one more process can be made in the jail.
fn is_crowded(expected: u64) -> bool {
    const TRY_AGAIN: isize = -11;
    if make_process() != TRY_AGAIN {
        return false;
    }
    // SECURITY: a limit that somebody else lowered says nothing about the program's.
    let mut limit = [0_u64; 2];
    // SAFETY: the structure is valid for writing.
    unsafe { raw(nr::PRLIMIT64, [0, PROCESSES, 0, limit.as_mut_ptr() as usize, 0, 0]) };
    limit == [expected; 2]
}

/// Makes a process that ends at once.
#[cfg(target_arch = "x86_64")]
fn make_process() -> isize {
    let result: isize;
    // SAFETY: the new process shares memory but ends without touching it or the stack, and this
    // one sleeps until then.
    unsafe {
        core::arch::asm!(
            "syscall", "test rax, rax", "jnz 2f", "mov eax, 60", "xor edi, edi", "syscall", "2:",
            inlateout("rax") nr::CLONE as isize => result,
            inlateout("rdi") SHARED_UNTIL_EXIT => _,
            in("rsi") 0, in("rdx") 0, in("r10") 0, in("r8") 0,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    result
}

/// As above.
#[cfg(target_arch = "aarch64")]
fn make_process() -> isize {
    let result: isize;
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "svc 0", "cbnz x0, 2f", "mov x8, 93", "svc 0", "2:",
            inlateout("x8") nr::CLONE => _,
            inlateout("x0") SHARED_UNTIL_EXIT as isize => result,
            in("x1") 0, in("x2") 0, in("x3") 0, in("x4") 0,
        );
    }
    result
}

/// `CLONE_VM | CLONE_VFORK | SIGCHLD`.
const SHARED_UNTIL_EXIT: usize = 0x4111;

#[repr(C)]
struct Polled {
    fd: i32,
    events: i16,
    seen: i16,
}

/// What woke init besides children and time.
struct Woken {
    /// The supervisor is gone or wants an end.
    supervisor: bool,
    /// The supervisor asks for a socket.
    asked: bool,
}

fn wait(children: i32, broker: i32, timeout_ms: Option<u64>) -> Woken {
    const READABLE: i16 = 1;
    let on = |fd| Polled { fd, events: READABLE, seen: 0 };
    let mut polled = [on(CONTROL as i32), on(children), on(broker)];
    let time = timeout_ms.map(|ms| [ms / 1000, ms % 1000 * 1_000_000]);
    let timeout = time.as_ref().map_or(0, |time| time.as_ptr() as usize);
    let args = [polled.as_mut_ptr() as usize, polled.len(), timeout, 0, 0, 0];
    // SAFETY: the array and the timeout outlive the call.
    unsafe { raw(nr::PPOLL, args) };
    let [supervisor, signals, asked] = polled;
    if signals.seen != 0 {
        let mut taken = [0_u8; 128];
        read(children as usize, &mut taken);
    }
    Woken { supervisor: supervisor.seen != 0, asked: asked.seen != 0 }
}

fn read(fd: usize, buffer: &mut [u8]) -> isize {
    // SAFETY: pointer and length come from one exclusive slice.
    unsafe { raw(nr::READ, [fd, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0]) }
}

fn tell(word: u32, a: i32) {
    send(CONTROL, [word as i32, a, 0], None);
}

/// Sends one message, and a descriptor with it.
fn send(socket: usize, message: [i32; 3], descriptor: Option<i32>) -> bool {
    const NO_SIGNAL: usize = 0x4000;
    const SOCKET_LEVEL: i32 = 1;
    const RIGHTS: i32 = 1;
    #[repr(C, align(8))]
    struct Attached {
        length: usize,
        level: i32,
        kind: i32,
        descriptor: i32,
        padding: i32,
    }
    let attached = Attached {
        length: 20,
        level: SOCKET_LEVEL,
        kind: RIGHTS,
        descriptor: descriptor.unwrap_or(-1),
        padding: 0,
    };
    let piece = [message.as_ptr() as usize, size_of_val(&message)];
    let (control, length) = match descriptor {
        Some(_) => (&raw const attached as usize, size_of::<Attached>()),
        None => (0, 0),
    };
    // Name, its length, the pieces, their number, what is attached, its length, flags.
    let header = [0, 0, piece.as_ptr() as usize, 1, control, length, 0];
    // SAFETY: the header has the kernel's layout and everything it points to outlives the call.
    unsafe { raw(nr::SENDMSG, [socket, header.as_ptr() as usize, NO_SIGNAL, 0, 0, 0]) >= 0 }
}

/// Answers one question of the socket broker; returns whether there may be another.
fn serve() -> bool {
    let mut bytes = [0_u8; 12];
    if read(BROKER, &mut bytes) != 12 {
        return false;
    }
    let mut message = [0_i32; 3];
    for (number, bytes) in message.iter_mut().zip(bytes.chunks_exact(4)) {
        if let Ok(bytes) = bytes.try_into() {
            *number = i32::from_ne_bytes(bytes);
        }
    }
    let [word, family, port] = message;
    if word != word::SOCKET as i32 {
        return false;
    }
    match open_socket(family, port) {
        Ok(socket) => {
            let sent = send(BROKER, [word::SOCKET as i32, 0, 0], Some(socket as i32));
            numbers(nr::CLOSE, [socket, 0, 0, 0]);
            sent
        }
        Err(errno) => send(BROKER, [word::FAILED as i32, LISTEN_STEP, errno], None),
    }
}

/// The step that is named when a socket could not be opened; a test of the crate compares it.
pub(crate) const LISTEN_STEP: i32 = 8;

/// Opens a stream socket; one that listens on loopback if there is a port.
fn open_socket(family: i32, port: i32) -> Result<usize, i32> {
    const INET: i32 = 2;
    const INET6: i32 = 10;
    const STREAM_CLOSED_ON_EXEC: usize = 0o2_000_001;
    const INVALID: i32 = 22;
    let Ok(port) = u16::try_from(port) else { return Err(INVALID) };
    if family != INET && family != INET6 {
        return Err(INVALID);
    }
    let call = |number, args: [usize; 6]| {
        // SAFETY: every pointer below is to something that outlives its call.
        let result = unsafe { raw(number, args) };
        usize::try_from(result).map_err(|_| -result as i32)
    };
    let socket = call(nr::SOCKET, [family as usize, STREAM_CLOSED_ON_EXEC, 0, 0, 0, 0])?;
    if port == 0 {
        return Ok(socket);
    }
    let mut address = [0_u8; 28];
    let [family_low, family_high] = (family as u16).to_ne_bytes();
    let [port_high, port_low] = port.to_be_bytes();
    let head = [family_low, family_high, port_high, port_low, 127, 0, 0, 1];
    let head_length = if family == INET { 8 } else { 4 };
    for (to, from) in address.iter_mut().zip(head).take(head_length) {
        *to = from;
    }
    let mut length = 16;
    if family == INET6 {
        // The address is `::1`; its last byte is the 24th.
        if let Some(last) = address.get_mut(23) {
            *last = 1;
        }
        length = 28;
    }
    let one = 1_i32;
    let option =
        |level, name| call(nr::SETSOCKOPT, [socket, level, name, &raw const one as usize, 4, 0]);
    let only_v6 = if family == INET6 { option(41, 26) } else { Ok(0) };
    let listening = only_v6
        .and_then(|_| option(1, 2))
        .and_then(|_| call(nr::BIND, [socket, address.as_ptr() as usize, length, 0, 0, 0]))
        .and_then(|_| call(nr::LISTEN, [socket, 128, 0, 0, 0, 0]));
    match listening {
        Ok(_) => Ok(socket),
        Err(errno) => {
            numbers(nr::CLOSE, [socket, 0, 0, 0]);
            Err(errno)
        }
    }
}

/// Numbers of system calls; a test of the crate compares them with those of the C library.
#[cfg(target_arch = "x86_64")]
pub(crate) mod nr {
    pub(crate) const READ: usize = 0;
    pub(crate) const WRITE: usize = 1;
    pub(crate) const CLOSE: usize = 3;
    pub(crate) const SOCKET: usize = 41;
    pub(crate) const SENDMSG: usize = 46;
    pub(crate) const BIND: usize = 49;
    pub(crate) const LISTEN: usize = 50;
    pub(crate) const SETSOCKOPT: usize = 54;
    pub(crate) const CLONE: usize = 56;
    pub(crate) const WAIT4: usize = 61;
    pub(crate) const KILL: usize = 62;
    pub(crate) const PRCTL: usize = 157;
    pub(crate) const CLOCK_GETTIME: usize = 228;
    pub(crate) const EXIT_GROUP: usize = 231;
    pub(crate) const PPOLL: usize = 271;
    pub(crate) const SIGNALFD4: usize = 289;
    pub(crate) const PRLIMIT64: usize = 302;
}

/// As above.
#[cfg(target_arch = "aarch64")]
pub(crate) mod nr {
    pub(crate) const READ: usize = 63;
    pub(crate) const WRITE: usize = 64;
    pub(crate) const CLOSE: usize = 57;
    pub(crate) const SOCKET: usize = 198;
    pub(crate) const SENDMSG: usize = 211;
    pub(crate) const BIND: usize = 200;
    pub(crate) const LISTEN: usize = 201;
    pub(crate) const SETSOCKOPT: usize = 208;
    pub(crate) const CLONE: usize = 220;
    pub(crate) const WAIT4: usize = 260;
    pub(crate) const KILL: usize = 129;
    pub(crate) const PRCTL: usize = 167;
    pub(crate) const CLOCK_GETTIME: usize = 113;
    pub(crate) const EXIT_GROUP: usize = 94;
    pub(crate) const PPOLL: usize = 73;
    pub(crate) const SIGNALFD4: usize = 74;
    pub(crate) const PRLIMIT64: usize = 261;
}
