//! The attack suite: real programs in the real tier, looked at from inside and from outside.
//!
//! Each attack is one function and one test of the same name. As root the test runs the attack in
//! the namespace tier as root and again, in a copy of this test binary, as an ordinary user.
//! The table of attack × tier × result in `docs/attacks.md` comes from `table`, which also shows
//! that every attack works where nothing holds it: on the leaky backend.

mod files;
mod further;
mod kernel;
mod leaky;
mod network;
mod resources;
pub(crate) mod scene;
mod sockets;
mod table;
mod through;

pub(crate) use leaky::Leaky;
pub(crate) use scene::{Scene, Verdict};

/// One attack.
#[derive(Clone, Copy)]
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    pub(crate) group: &'static str,
    pub(crate) run: fn(&Scene) -> Verdict,
    /// Whether it succeeds on the leaky backend as root on any Linux; a few need something this
    /// machine may lack.
    pub(crate) leaks: Leaks,
}

/// What is known of an attack where nothing holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaks {
    /// It succeeds.
    Always,
    /// It may fail for a reason of the machine's own (a kernel without the feature).
    Perhaps,
}

/// Every attack.
pub(crate) fn all() -> Vec<Attack> {
    let groups = [
        files::all(),
        kernel::all(),
        resources::all(),
        network::all(),
        sockets::all(),
        through::all(),
        further::all(),
    ];
    groups.concat()
}

macro_rules! attacks {
    ($group:literal: $($rest:tt)*) => { crate::attacks::attacks!($group, hold: $($rest)*); };
    ($group:literal, $hold:ident: $($name:ident $leaks:ident),* $(,)?) => {
        pub(crate) fn all() -> Vec<crate::attacks::Attack> {
            vec![$(crate::attacks::Attack {
                name: stringify!($name),
                group: $group,
                run: $name,
                leaks: crate::attacks::Leaks::$leaks,
            }),*]
        }

        mod tests {
            $(#[test]
            fn $name() {
                let path = concat!(module_path!(), "::", stringify!($name));
                crate::attacks::scene::$hold(path, super::$name);
            })*
        }
    };
}
pub(crate) use attacks;
