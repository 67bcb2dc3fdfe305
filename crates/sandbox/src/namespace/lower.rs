//! Lowers an invocation to what the jail will apply, and tells it as readable JSON.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use serde_json::{Value, json};
use warrant_jail::seccomp::UnixSockets;
use warrant_jail::{Attributes, Entry, HostPath, Identity, Listener, ListenerKind, Mount, Source};

use crate::door;
use crate::invocation::shown;
use crate::namespace::identity::{Identities, RunIdentity};
use crate::namespace::layout::{self, Layout, MountKind, Piece, PlannedMount, System, Wanted};
use crate::namespace::masks::{self, Masks};
use crate::namespace::resolve::Resolved;
use crate::namespace::sockets;
use crate::{
    BoundaryError, Command, EnvValue, EnvVar, Files, Invocation, Network, Place, Refusal, Shell,
    WorkspaceAccess,
};

/// An invocation in terms of the jail.
#[derive(Debug)]
pub(crate) struct Lowered {
    pub(crate) layout: Layout,
    pub(crate) masks: Masks,
    pub(crate) env: Vec<EnvVar>,
    pub(crate) argv: Vec<CString>,
    /// Where the program may be, in the order in which it is tried.
    pub(crate) candidates: Vec<CString>,
    pub(crate) cwd: PathBuf,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) workspace: Resolved,
    /// Roots shown under another path: the root without links, and where inside.
    pub(crate) places: Vec<(PathBuf, PathBuf)>,
    /// Which Unix sockets the program may make.
    pub(crate) unix_sockets: UnixSockets,
}

/// What a run writes besides its scratch filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WrittenRoots {
    /// Nothing.
    None,
    /// Directories of the host.
    OfHost(Vec<PathBuf>),
    /// Directories of a sandbox that outlives the run; whoever keeps it counts what is in them.
    OfSandbox,
}

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const DEFAULT_HOME: &str = "/tmp";
/// What the program's account is called when its environment does not say.
const DEFAULT_ACCOUNT: &str = "warrant";
/// Where the explicit proxy listens inside.
pub(crate) const PROXY_PORT: u16 = 3128;
/// Ports on which connections that ignore the proxy are caught besides those of the rules.
const TRANSPARENT_PORTS: [u16; 2] = [80, 443];
/// Rules with more ports than this are refused rather than half caught.
const MOST_TRANSPARENT_PORTS: usize = 40;

/// Returns what the jail will apply for `invocation`.
pub(crate) fn lower(
    invocation: &Invocation,
    identity: Identity,
    system: System,
) -> Result<Lowered, Refusal> {
    let files = &invocation.files;
    let workspace = resolve(&files.workspace, "workspace")?;
    if !workspace.is_directory {
        return Err(denied(format!("workspace {} is not a directory", workspace.path.display())));
    }
    let read_roots = resolve_all(&files.read_roots, "read root")?;
    let write_roots = resolve_all(&files.write_roots, "write root")?;
    let places = places(files, (&workspace, &write_roots))?;
    let env = environment(invocation, &format!("127.0.0.1:{PROXY_PORT}"));
    let home = variable(&env, "HOME").filter(|home| home.starts_with('/'));
    let layout = layout::plan(&Wanted {
        workspace: &workspace,
        access: files.access,
        read_roots: &read_roots,
        write_roots: &write_roots,
        places: &places,
        home: Path::new(home.unwrap_or(DEFAULT_HOME)),
        account: variable(&env, "USER").filter(|name| is_account(name)).unwrap_or(DEFAULT_ACCOUNT),
        uid: identity.uid,
        gid: identity.gid,
        system,
        env: &env,
    });
    let shown = places.iter().find(|(root, _)| *root == workspace.path);
    let shown = shown.map_or(workspace.path.as_path(), |(_, inside)| inside.as_path());
    let masks = masks::find(&workspace, (&files.masks, shown), files.access).map_err(|error| {
        prepare_failed(format!("the workspace could not be searched for secrets: {error}"))
    })?;
    let cwd = inside_directory(&invocation.cwd, &layout, &places)?;
    let (argv, candidates) = program(&invocation.command, &env)?;
    let candidates = existing(candidates, &layout);
    let unix_sockets = sockets::unix_sockets(&layout, &places);
    Ok(Lowered {
        unix_sockets,
        layout,
        masks,
        env,
        argv,
        candidates,
        cwd,
        listeners: listeners(&invocation.network)?,
        workspace,
        places,
    })
}

/// Returns which roots are shown elsewhere, by their paths without links.
fn places(
    files: &Files,
    (workspace, write_roots): (&Resolved, &[Resolved]),
) -> Result<Vec<(PathBuf, PathBuf)>, Refusal> {
    let resolved = |place: &Place| {
        let mut written = files.write_roots.iter().zip(write_roots);
        let root = match files.workspace == place.root {
            true => Some(workspace),
            false => written.find(|(given, _)| **given == place.root).map(|(_, root)| root),
        };
        let shown = place.inside.display();
        match root {
            Some(root) if layout::is_place(&place.inside) => {
                Ok((root.path.clone(), place.inside.clone()))
            }
            Some(_) => Err(denied(format!("nothing can be shown at {shown}"))),
            None => Err(denied(format!("what is shown at {shown} is no root"))),
        }
    };
    files.places.iter().map(resolved).collect()
}

fn resolve(path: &Path, what: &str) -> Result<Resolved, Refusal> {
    if !path.is_absolute() {
        return Err(denied(format!("{what} {} is not an absolute path", path.display())));
    }
    let resolved = Resolved::new(path)
        .map_err(|error| denied(format!("{what} {} cannot be opened: {error}", path.display())))?;
    if resolved.is_special {
        return Err(denied(format!(
            "{what} {} is a socket, a named pipe or a device; grant a directory or a file",
            path.display()
        )));
    }
    if layout::is_grantable(&resolved.path) {
        Ok(resolved)
    } else {
        Err(denied(format!("{what} {} would replace a part of the boundary", path.display())))
    }
}

fn resolve_all(paths: &[PathBuf], what: &str) -> Result<Vec<Resolved>, Refusal> {
    paths.iter().map(|path| resolve(path, what)).collect()
}

/// Returns the working directory without links; it must exist inside.
fn inside_directory(
    cwd: &Path,
    layout: &Layout,
    places: &[(PathBuf, PathBuf)],
) -> Result<PathBuf, Refusal> {
    let missing = || denied(format!("working directory {} does not exist inside", cwd.display()));
    let place =
        places.iter().find_map(|(root, inside)| Some((root, cwd.strip_prefix(inside).ok()?)));
    if let Some((root, below)) = place {
        return if is_directory_below(root, below) { Ok(cwd.to_owned()) } else { Err(missing()) };
    }
    let is_shown = |path: &Path| {
        layout.mounts.iter().any(|mount| path.starts_with(&mount.target))
            || layout.entries.iter().any(|piece| {
                matches!(piece, Piece::Directory { path: directory, .. } if directory == path)
            })
    };
    let resolved = Resolved::new(cwd).ok().filter(|resolved| resolved.is_directory);
    match resolved {
        Some(resolved) if is_shown(&resolved.path) => Ok(resolved.path),
        _ if cwd == Path::new("/") || cwd == Path::new("/tmp") => Ok(cwd.to_owned()),
        _ => Err(missing()),
    }
}

/// Whether a path below a root is a directory, whatever links say about the rest of the host.
fn is_directory_below(root: &Path, below: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(root) = openat(CWD, root, flags, Mode::empty()) else { return false };
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    openat2(&root, below, flags, Mode::empty(), how).is_ok()
}

/// Returns the environment in the namespace tier. `proxy` is the authority of the explicit proxy's
/// URL; loopback is the sandbox's own.
pub(crate) fn environment(invocation: &Invocation, proxy: &str) -> Vec<EnvVar> {
    let mut env = plain_environment(invocation);
    if invocation.network != Network::Allow(Vec::new()) {
        add_proxy(&mut env, proxy, "localhost,127.0.0.1,::1");
    }
    env
}

/// Returns the invocation's own environment, and what every program needs if it is missing.
pub(crate) fn plain_environment(invocation: &Invocation) -> Vec<EnvVar> {
    let mut env = invocation.env.clone();
    let mut add = |name: &str, value: &str| {
        if variable(&env, name).is_none() {
            let value = EnvValue::Plain(value.to_owned());
            env.push(EnvVar { name: name.to_owned(), value });
        }
    };
    add("PATH", DEFAULT_PATH);
    add("HOME", DEFAULT_HOME);
    if invocation.tty.is_some() {
        add("TERM", "xterm-256color");
    }
    env
}

/// Adds the variables that name the explicit proxy, where the invocation names none itself;
/// `direct` are the hosts that programs reach without it.
pub(crate) fn add_proxy(env: &mut Vec<EnvVar>, proxy: &str, direct: &str) {
    let proxy = format!("http://{proxy}");
    let proxies =
        ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    let named = proxies.map(|name| (name, proxy.as_str())).into_iter();
    for (name, value) in named.chain(["NO_PROXY", "no_proxy"].map(|name| (name, direct))) {
        if variable(env, name).is_none() {
            let value = EnvValue::Plain(value.to_owned());
            env.push(EnvVar { name: name.to_owned(), value });
        }
    }
}

fn variable<'a>(env: &'a [EnvVar], name: &str) -> Option<&'a str> {
    env.iter().find(|variable| variable.name == name).map(|variable| variable.value.reveal())
}

/// Returns the arguments and where the program may be, in the order of `PATH`.
pub(crate) fn program(
    command: &Command,
    env: &[EnvVar],
) -> Result<(Vec<CString>, Vec<CString>), Refusal> {
    let (name, argv) = match command {
        Command::Argv { program, args } => {
            (program.as_str(), std::iter::once(program).chain(args).map(String::as_str).collect())
        }
        Command::Shell { shell, script } => {
            let name = match shell {
                Shell::Sh => "sh",
                Shell::Bash => "bash",
            };
            (name, vec![name, "-c", script.as_str()])
        }
    };
    if name.is_empty() {
        return Err(denied("the program's name is empty".to_owned()));
    }
    let argv = argv.into_iter().map(|text: &str| c_text(text)).collect::<Result<_, _>>()?;
    if name.contains('/') {
        return Ok((argv, vec![c_text(name)?]));
    }
    let path = variable(env, "PATH").unwrap_or(DEFAULT_PATH);
    let directories = path.split(':').filter(|directory| !directory.is_empty());
    let candidates = directories.map(|directory| c_text(&format!("{directory}/{name}")));
    Ok((argv, candidates.collect::<Result<_, _>>()?))
}

/// Leaves out where the program cannot be: the system inside is the one outside, and looking here is
/// quicker than trying to execute there. One stays, so that the attempt says what is wrong.
fn existing(candidates: Vec<CString>, layout: &Layout) -> Vec<CString> {
    use std::os::unix::ffi::OsStrExt as _;
    let is_system = |path: &Path| {
        let mut mounts = layout.mounts.iter();
        mounts
            .any(|mount| matches!(mount.kind, MountKind::System) && path.starts_with(&mount.target))
    };
    let is_missing = |candidate: &CString| {
        let path = Path::new(std::ffi::OsStr::from_bytes(candidate.to_bytes()));
        is_system(path)
            && path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    let last = candidates.last().cloned();
    let mut left: Vec<CString> =
        candidates.into_iter().filter(|candidate| !is_missing(candidate)).collect();
    if left.is_empty() {
        left.extend(last);
    }
    left
}

fn c_text(text: &str) -> Result<CString, Refusal> {
    CString::new(text).map_err(|_| denied("a NUL byte in the command or environment".to_owned()))
}

/// Returns the listeners opened inside: the explicit proxy, names, the transparent ports, and
/// witnesses of what is tried on any other.
fn listeners(network: &Network) -> Result<Vec<Listener>, Refusal> {
    let mut ports: BTreeSet<u16> = door::rules(network)?.ports();
    ports.extend(TRANSPARENT_PORTS);
    ports.retain(|port| *port != PROXY_PORT && *port != 53 && *port != 0);
    if ports.len() > MOST_TRANSPARENT_PORTS {
        return Err(denied(format!("more than {MOST_TRANSPARENT_PORTS} ports in network rules")));
    }
    let at =
        |kind, address: IpAddr, port| Listener { kind, address: SocketAddr::new(address, port) };
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let any6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let mut listeners = vec![
        at(ListenerKind::Tcp, IpAddr::V4(Ipv4Addr::LOCALHOST), PROXY_PORT),
        at(ListenerKind::Udp, any, 53),
        at(ListenerKind::Tcp, any, 53),
    ];
    listeners.extend(ports.iter().map(|port| at(ListenerKind::Tcp, any, *port)));
    if has_ipv6() {
        listeners.extend(ports.iter().map(|port| at(ListenerKind::Tcp, any6, *port)));
        listeners
            .extend([ListenerKind::TcpWitness, ListenerKind::UdpWitness].map(|w| at(w, any6, 0)));
    }
    listeners.extend([ListenerKind::TcpWitness, ListenerKind::UdpWitness].map(|w| at(w, any, 0)));
    Ok(listeners)
}

fn has_ipv6() -> bool {
    Path::new("/proc/net/if_inet6").exists()
}

impl Lowered {
    /// Returns the plan as people and tests read it. Secrets are names only.
    pub(crate) fn artifact(&self, invocation: &Invocation, identities: &Identities) -> Value {
        let (identity, kernel_uid) = (identities.inside(), identities.shared_kernel_uid());
        let mounts = self.layout.mounts.iter().chain(&self.masks.mounts);
        let env = self.env.iter().map(|variable| variable.value.shown(&variable.name));
        let limits = serde_json::to_value(&invocation.limits).unwrap_or(Value::Null);
        let network = match &invocation.network {
            Network::Allow(rules) => json!({ "allow": rules }),
            Network::DangerEverything => json!("everything"),
        };
        json!({
            "provider": "namespace",
            // A privileged supervisor gives each run a kernel id of its own when it starts.
            "identity": match kernel_uid {
                Some(kernel_uid) => json!({
                    "uid": identity.uid, "gid": identity.gid, "kernelUid": kernel_uid,
                    "kernelGid": identity.kernel_gid,
                }),
                None => json!({ "uid": identity.uid, "gid": identity.gid }),
            },
            "command": {
                "argv": self.argv.iter().map(|text| text.to_string_lossy()).collect::<Vec<_>>(),
                "candidates":
                    self.candidates.iter().map(|text| text.to_string_lossy()).collect::<Vec<_>>(),
                "cwd": shown(&self.cwd),
            },
            "environment": env.collect::<Vec<_>>(),
            "workspace": {
                "path": shown(&self.workspace.path),
                "access": match invocation.files.access {
                    WorkspaceAccess::ReadOnly => "read-only",
                    WorkspaceAccess::Overlay => "overlay",
                    WorkspaceAccess::Direct => "direct",
                },
            },
            "mounts": mounts.map(describe).collect::<Vec<_>>(),
            "places": self.places.iter().map(|(_, inside)| shown(inside)).collect::<Vec<_>>(),
            "hiddenNames": all_shown(self.masks.hidden_at_the_top()),
            "hiddenBelow": self.masks.hidden_below(),
            "writable": all_shown(&self.layout.writable),
            "network": network,
            "unixSockets": self.unix_sockets.as_str(),
            "listeners":
                self.listeners.iter().map(|listener| format!("{:?} {}", listener.kind, listener.address)).collect::<Vec<_>>(),
            "limits": limits,
        })
    }

    /// Returns what is written besides the scratch filesystem.
    pub(crate) fn written_directly(&self) -> WrittenRoots {
        let roots = self.layout.mounts.iter().filter_map(|mount| match &mount.kind {
            MountKind::Writable(root) => Some(root.path.clone()),
            _ => None,
        });
        let roots: Vec<PathBuf> = roots.collect();
        let is_of_sandbox = |root: &PathBuf| self.places.iter().any(|(place, _)| place == root);
        match roots.iter().any(is_of_sandbox) {
            true => WrittenRoots::OfSandbox,
            false if roots.is_empty() => WrittenRoots::None,
            false => WrittenRoots::OfHost(roots),
        }
    }

    /// Returns what is created in the root.
    pub(crate) fn entries(&self) -> Result<Vec<Entry>, BoundaryError> {
        let entry = |piece: &Piece| -> io::Result<Entry> {
            Ok(match piece {
                Piece::Directory { path, mode } => {
                    Entry::Directory { path: relative(path)?, mode: *mode }
                }
                Piece::Symlink { path, target } => {
                    Entry::Symlink { path: relative(path)?, target: c_path(target)? }
                }
                Piece::File { path, content } => {
                    Entry::File { path: relative(path)?, content: content.clone() }
                }
            })
        };
        let entries = self.layout.entries.iter().map(entry).collect::<io::Result<_>>();
        entries.map_err(|cause| BoundaryError { step: "describing the root", cause })
    }

    /// Returns what is mounted; a privileged supervisor gives granted directories id-mapped.
    pub(crate) fn mounts(&self, run: &RunIdentity) -> Result<Vec<Mount>, BoundaryError> {
        let mounts = self.layout.mounts.iter().chain(&self.masks.mounts);
        mounts
            .map(|mount| {
                let target = relative(&mount.target);
                let source = source(mount, &self.masks, run);
                let is_shown = self.unix_sockets == UnixSockets::Inside
                    && sockets::is_shown_through_overlay(&mount.target, &mount.kind);
                let source = source.map(|source| match is_shown {
                    true => Source::Shown(Box::new(source)),
                    false => source,
                });
                let attributes = attributes(&mount.kind);
                Ok(Mount { target: target?, source: source?, attributes })
            })
            .collect::<io::Result<_>>()
            .map_err(|cause| BoundaryError { step: "describing the mounts", cause })
    }
}

fn source(mount: &PlannedMount, masks: &Masks, run: &RunIdentity) -> io::Result<Source> {
    let target = &mount.target;
    Ok(match &mount.kind {
        MountKind::System | MountKind::Device => {
            Source::Host(HostPath { path: c_path(target)?, identity: None })
        }
        MountKind::Library(file) => Source::Host(HostPath { path: c_path(file)?, identity: None }),
        MountKind::Granted(resolved) => granted(resolved, run, true)?,
        MountKind::Writable(resolved) => granted(resolved, run, false)?,
        MountKind::Overlay(resolved) => Source::Overlay {
            lower: Box::new(granted(resolved, run, true)?),
            hidden: masks.hidden()?,
        },
        MountKind::Private => Source::Skeleton(relative(target)?),
        MountKind::Proc => Source::Proc,
        MountKind::Terminals => Source::Terminals,
        MountKind::VeiledFile => Source::VeiledFile,
        MountKind::VeiledDirectory => Source::VeiledDirectory,
    })
}

/// Returns a granted directory, as the program's own where we are privileged.
///
/// Where its filesystem cannot be id-mapped it can still be read as anyone may read it.
fn granted(resolved: &Resolved, run: &RunIdentity, may_stay_foreign: bool) -> io::Result<Source> {
    let host = HostPath { path: c_path(&resolved.path)?, identity: Some(resolved.identity) };
    if !run.is_privileged() {
        return Ok(Source::Host(host));
    }
    match run.mount_as_own(&host, resolved.owner) {
        Ok(tree) => Ok(Source::Detached(tree)),
        Err(error) if !may_stay_foreign => Err(error),
        Err(_) => Ok(Source::Host(host)),
    }
}

const fn attributes(kind: &MountKind) -> Attributes {
    let (writable, executable, devices) = match kind {
        MountKind::System | MountKind::Library(_) | MountKind::Granted(_) => (false, true, false),
        MountKind::Writable(_) | MountKind::Overlay(_) | MountKind::Private => (true, true, false),
        MountKind::Device | MountKind::Terminals => (true, false, true),
        MountKind::Proc | MountKind::VeiledFile | MountKind::VeiledDirectory => {
            (false, false, false)
        }
    };
    Attributes { writable, executable, devices }
}

fn describe(mount: &PlannedMount) -> Value {
    let attributes = attributes(&mount.kind);
    json!({
        "target": shown(&mount.target),
        "kind": mount.kind.as_str(),
        "writable": attributes.writable,
        "executable": attributes.executable,
    })
}

/// Returns paths as the plan has them.
fn all_shown<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Vec<String> {
    paths.into_iter().map(|path| shown(path)).collect()
}

fn relative(path: &Path) -> io::Result<CString> {
    c_path(path.strip_prefix("/").unwrap_or(path))
}

pub(crate) fn c_path(path: &Path) -> io::Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from)
}

pub(crate) fn denied(message: String) -> Refusal {
    Refusal { code: "SANDBOX_DENIED", message }
}

pub(crate) fn prepare_failed(message: String) -> Refusal {
    Refusal { code: "SANDBOX_PREPARE_FAILED", message }
}

/// Returns whether an account may be called so; those that exist anyway keep their names.
fn is_account(name: &str) -> bool {
    let is_taken = ["root", "nobody"].contains(&name);
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
    !is_taken
        && name.len() <= 32
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(is_plain)
}
