//! Reading, writing or learning of files outside the workspace.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use rustix::fs::{FileType, Mode, mknodat};

use crate::hermetic::kit::Bench;

#[test]
fn symlink_cannot_leave_the_workspace() {
    let bench = Bench::new();
    symlink(bench.outside(""), bench.path("dir")).unwrap();
    symlink(bench.outside("secret"), bench.path("file")).unwrap();
    symlink("../outside/secret", bench.path("climb")).unwrap();
    let script = "cat file climb dir/secret; ls dir; echo x > dir/new; echo x > file; \
                  echo x >> climb; cp file copy; tar cf t.tar dir/secret file; cat t.tar; \
                  ln -s ../outside up; cat up/secret; grep -r SECRET . ; find -L . -name secret; \
                  mv dir/secret stolen; rm -rf dir/; chmod 777 file; touch -d 2000-01-01 climb; \
                  cd dir && cat secret; cat < file; . ./file; sed -i s/S/T/ file climb";
    let ran = bench.run(script);
    assert!(!ran.stdout.contains("SECRET"), "{}", ran.stdout);
    assert!(!ran.stderr.contains("SECRET"), "{}", ran.stderr);
    bench.check_outside_is_untouched();
}

#[test]
fn a_link_made_inside_leads_nowhere_outside_for_host_programs_either() {
    let bench = Bench::new();
    bench.put("p/q/keep", "");
    let script = "ln -s /outside/secret abs; ln -s ../outside/secret climb; \
                  cd p/q; ln -s / s; ln -s s/../../outside/secret twisted; \
                  ln -s ../../../outside/secret deep; readlink deep; cat deep twisted";
    let ran = bench.run(script);
    assert!(!ran.stdout.contains("SECRET"), "{}", ran.stdout);
    assert!(ran.stdout.starts_with("../../../outside/secret\n"), "{}", ran.stdout);
    for link in ["abs", "climb", "p/q/twisted", "p/q/deep", "p/q/s"] {
        if let Ok(real) = bench.path(link).canonicalize() {
            assert!(real.starts_with(bench.workspace()), "{link} leads to {real:?}");
        }
    }
}

#[test]
fn link_targets_do_not_show_host_paths() {
    let bench = Bench::new();
    symlink(bench.outside("secret"), bench.path("out")).unwrap();
    symlink("/home/someone/.ssh/id_rsa", bench.path("home")).unwrap();
    symlink("../outside/secret", bench.path("up")).unwrap();
    bench.put("real", "inside\n");
    symlink(bench.path("real"), bench.path("within")).unwrap();
    let script = "readlink *; readlink -f out home up; realpath out up; ls -la; find . -printf '%l '; \
                  stat out; cp -P out copy; readlink copy; tar cf - out | tar tvf -; cat within; pwd -P";
    let ran = bench.run(script);
    let said = format!("{}{}", ran.stdout, ran.stderr);
    let temp = bench.temp.path().canonicalize().unwrap();
    assert!(!said.contains(temp.to_str().unwrap()), "{said}");
    assert!(!said.contains("someone"), "{said}");
    assert!(!said.contains("outside/secret"), "{said}");
    assert!(said.contains("inside\n"), "a link into the workspace still works: {said}");
}

#[test]
fn errors_do_not_show_host_paths() {
    let bench = Bench::new();
    bench.put("d/f", "");
    let script = "cat nope d; rm d; mkdir d; cp nope x; mv nope x; cd nope; ls nope; . nope; \
                  ./d/f; /nope; touch nope/x; ln -s a d/f; rmdir d; grep x nope; sed p nope; \
                  awk 1 nope; jq . nope; tar xf nope; find nope; diff a b; echo $PWD $OLDPWD ~";
    let ran = bench.run(script);
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert!(!said.contains(bench.temp.path().to_str().unwrap()), "{said}");
    assert!(!said.contains("workspace"), "{said}");
}

#[test]
fn a_planted_fifo_socket_or_device_is_never_opened() {
    let mut bench = Bench::new();
    bench.invocation.limits.wall_ms = Some(5000);
    let directory = fs::File::open(bench.workspace()).unwrap();
    let mode = Mode::from_raw_mode(0o666);
    mknodat(&directory, "fifo", FileType::Fifo, mode, 0).unwrap();
    let _socket = UnixListener::bind(bench.path("socket")).unwrap();
    let mut names = vec!["fifo", "socket"];
    let zero = rustix::fs::makedev(1, 5);
    // Only root may make a device, and not in every container.
    if mknodat(&directory, "zero", FileType::CharacterDevice, mode, zero).is_ok() {
        names.push("zero");
    }
    for name in names {
        let script = format!(
            "cat {name}; echo x > {name}; echo x >> {name}; cp {name} c; head -c 9 < {name}; \
             grep x {name}; wc {name}; sha256sum {name}; . ./{name}; tail {name}; \
             sed -i s/a/b/ {name}; dd if={name} of=o count=1; ls -l {name}; mv {name} moved; echo end; tar cf t moved"
        );
        let ran = bench.run(&script);
        assert!(ran.stdout.ends_with("end\n"), "{name}: {}", ran.stdout);
        assert!(ran.took < Duration::from_secs(3), "{name}: {:?}", ran.took);
    }
}

#[test]
fn host_files_outside_the_workspace_do_not_exist() {
    let bench = Bench::new();
    let outside = bench.outside("secret");
    let script = format!(
        "cat {0}; cat /..{0}; cat /proc/self/root{0}; cat /proc/self/cwd/../outside/secret; \
         cat /proc/1/environ /proc/self/environ; ls /proc /root /home /etc; cat /etc/hostname; \
         cat /dev/fd/0 /dev/fd/3 /proc/self/fd/3; cd ..; cd ../..; pwd; ls -a; \
         cat ../outside/secret; echo x > ../outside/new; echo x > /../../outside/new",
        outside.display()
    );
    let ran = bench.run(&script);
    assert!(!ran.stdout.contains("SECRET"), "{}", ran.stdout);
    let hostname = fs::read_to_string("/etc/hostname").unwrap_or_default();
    let hostname = hostname.trim();
    assert!(hostname.is_empty() || !ran.stdout.contains(hostname), "{}", ran.stdout);
    bench.check_outside_is_untouched();
}

#[test]
fn writing_through_a_planted_hard_link_leaves_the_other_name_alone() {
    let bench = Bench::new();
    for name in ["w", "a", "s", "t"] {
        fs::hard_link(bench.outside("secret"), bench.path(name)).unwrap();
    }
    bench.run("echo changed > w; echo more >> a; sed -i s/S/T/ s; truncate -s 0 t; cp w a");
    bench.check_outside_is_untouched();
    assert_eq!(fs::read_to_string(bench.path("w")).unwrap(), "changed\n");
}

#[test]
fn the_repositorys_own_files_cannot_be_written() {
    let bench = Bench::new();
    bench.put(".git/config", "[core]\n");
    bench.put(".git/hooks/pre-commit.sample", "");
    bench.put("sub/.git/config", "[core]\n");
    bench.put("evil/hooks/pre-commit", "#!/bin/sh\n");
    bench.put("evil/config", "[core]\nfsmonitor=x\n");
    let script = "cat .git/config; echo x > .git/config; echo x >> .git/hooks/post-checkout; \
        mkdir .git/hooks/d; rm -rf .git; mv .git g; mv evil/config .git/config; mv evil/hooks .git/hooks; \
        cp evil/config .git/config.worktree; ln -s ../evil .git/info; chmod +x .git/hooks/*; \
        echo x > .GIT/config; echo x > sub/.git/config; rm sub/.git/config; mv sub/.git s; \
        ln -s .git g2; echo x > g2/config; cd .git; echo x > config; sed -i s/c/d/ config; cd ..; \
        mkdir -p new/.git/hooks; echo 'gitdir: /evil' > new/.git; mv evil new/.git; ln -s evil new2/.git; \
        tar cf t.tar evil; tar xf t.tar -C .git; echo x | tee .git/config; touch .git/index.lock";
    let ran = bench.run(script);
    assert!(ran.stdout.starts_with("[core]\n"), "{}", ran.stdout);
    assert_eq!(fs::read_to_string(bench.path(".git/config")).unwrap(), "[core]\n");
    assert_eq!(fs::read_to_string(bench.path("sub/.git/config")).unwrap(), "[core]\n");
    assert_eq!(fs::read_dir(bench.path(".git")).unwrap().count(), 2);
    assert_eq!(fs::read_dir(bench.path(".git/hooks")).unwrap().count(), 1);
    assert!(!bench.path("new/.git").exists() && !bench.path(".GIT").exists());
}

#[test]
fn a_granted_repository_can_be_written() {
    let mut bench = Bench::new();
    bench.put(".git/config", "[core]\n");
    bench.invocation.files.write_roots = vec![bench.path(".git")];
    bench.check("echo x >> .git/config; cat .git/config", "[core]\nx\n");
}

#[test]
fn a_bare_repository_cannot_be_planted() {
    let bench = Bench::new();
    let orders = ["HEAD objects refs", "objects refs HEAD", "refs HEAD objects"];
    for (at, order) in orders.iter().enumerate() {
        let script = format!(
            "mkdir r{at}; cd r{at}; for n in {order}; do mkdir $n; echo ref > $n/x; done; \
             mkdir HEAD; echo 'ref: refs/heads/main' > HEAD; echo x > config; \
             mkdir spare; mv spare objects; mkdir spare; mv spare Refs; ln -s x HEAD"
        );
        bench.run(&script);
        let names: Vec<String> = fs::read_dir(bench.path(&format!("r{at}")))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap().to_lowercase())
            .collect();
        let all = ["head", "objects", "refs"].iter().all(|n| names.iter().any(|name| name == n));
        assert!(!all, "{names:?}");
    }
}

#[test]
fn a_masked_secret_is_empty_unreadable_and_indestructible() {
    let mut bench = Bench::new();
    bench.invocation.files.masks = vec![".env".into(), "config/secret.yml".into(), "*.pem".into()];
    bench.put(".env", "KEY=SECRET-MASKED\n");
    bench.put("deep/er/.ENV", "KEY=SECRET-MASKED\n");
    bench.put("config/secret.yml", "SECRET-MASKED\n");
    bench.put("x/Key.PEM", "SECRET-MASKED\n");
    fs::hard_link(bench.path(".env"), bench.path("alias")).unwrap();
    symlink(".env", bench.path("link")).unwrap();
    let script = "cat .env deep/er/.ENV config/secret.yml x/Key.PEM alias link; wc -c .env; \
        mv config c2; cat c2/secret.yml; mv .env plain; cat plain; cp .env p2; cat p2; \
        cp -r config c3; cat c3/*; tar cf - . | grep -a -c SECRET; grep -r SECRET .; \
        rm -f .env config/secret.yml; rm -rf config x; echo x > .env; echo x >> alias; \
        chmod 777 .env; ln .env hard; cat hard; mkdir n; echo new > n/.env; cat n/.env; \
        sed p .env; awk 1 .env; head .env; . ./.env; echo $KEY; base64 .env; ls -l .env";
    let ran = bench.run(script);
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert!(!said.contains("SECRET-MASKED"), "{said}");
    for name in [".env", "deep/er/.ENV", "config/secret.yml", "x/Key.PEM", "alias"] {
        let content = fs::read_to_string(bench.path(name)).unwrap();
        assert!(content.ends_with("SECRET-MASKED\n"), "{name}: {content}");
    }
    assert!(!bench.path("n/.env").exists(), "a masked name that appears later is masked too");
}

#[test]
fn names_with_newlines_escapes_and_bad_utf8_can_be_seen_read_and_removed() {
    let bench = Bench::new();
    let names: [&[u8]; 5] =
        [b"new\nline", b"esc\x1b[31m", b"bad\xff\xfe", b"-rf", b"z\xe2\x80\x8d"];
    for name in names {
        fs::write(bench.workspace().join(OsStr::from_bytes(name)), "content\n").unwrap();
    }
    let script = "ls | wc -l; for f in *; do cat -- \"$f\"; done; find . -type f | wc -l; \
                  for f in *; do cp -- \"$f\" \"$f.copy\"; done; rm -- *; ls | wc -l";
    let ran = bench.run(script);
    let expected = "5\ncontent\ncontent\ncontent\ncontent\ncontent\n5\n0\n";
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), (expected, ""));
    assert_eq!(fs::read_dir(bench.workspace()).unwrap().count(), 0);
}

#[test]
fn a_copy_of_a_bad_name_keeps_its_bytes() {
    let bench = Bench::new();
    fs::write(bench.workspace().join(OsStr::from_bytes(b"a\xff")), "x").unwrap();
    bench.check("for f in a*; do mv \"$f\" \"b$f\"; done", "");
    assert!(bench.workspace().join(OsStr::from_bytes(b"ba\xff")).exists());
}

#[test]
fn no_set_uid_file_is_left_behind() {
    let bench = Bench::new();
    bench.run(
        "echo x > f; chmod 4755 f; chmod u+s f; chmod 6777 f; mkdir d; chmod 2777 d; \
               install -m 4755 f g; mkfifo p; mknod n c 1 3",
    );
    for entry in fs::read_dir(bench.workspace()).unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.metadata().unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7000, 0, "{entry:?}");
        assert!(metadata.is_file() || metadata.is_dir(), "{entry:?}");
    }
}

#[test]
fn an_archive_entry_that_climbs_stays_inside() {
    let bench = Bench::new();
    let make = std::process::Command::new("python3")
        .arg("-c")
        .arg(
            "import tarfile,io,sys\n\
             t=tarfile.open(sys.argv[1],'w')\n\
             for n in ['../outside/new','/outside/new','a/../../outside/new','ok']:\n\
             \x20 i=tarfile.TarInfo(n); i.size=2; t.addfile(i,io.BytesIO(b'x\\n'))\n\
             l=tarfile.TarInfo('l'); l.type=tarfile.SYMTYPE; l.linkname='../outside'; t.addfile(l)\n\
             i=tarfile.TarInfo('l/new'); i.size=2; t.addfile(i,io.BytesIO(b'x\\n'))\n\
             d=tarfile.TarInfo('dev'); d.type=tarfile.CHRTYPE; d.devmajor=1; d.devminor=5; t.addfile(d)\n\
             t.close()",
        )
        .arg(bench.path("evil.tar"))
        .status()
        .unwrap();
    assert!(make.success());
    bench.run("tar xf evil.tar; cd /; tar xPf evil.tar; ls -laR");
    bench.check_outside_is_untouched();
    assert!(!bench.temp.path().join("new").exists());
}

#[test]
fn private_tmp_is_not_the_hosts_and_leaves_nothing_behind() {
    let bench = Bench::new();
    bench.check(
        "echo x > /tmp/warrant-probe; cat /tmp/warrant-probe; f=$(mktemp); ls / | wc -l",
        "x\n0\n",
    );
    assert!(!std::path::Path::new("/tmp/warrant-probe").exists());
    assert_eq!(fs::read_dir(bench.workspace()).unwrap().count(), 0);
}
