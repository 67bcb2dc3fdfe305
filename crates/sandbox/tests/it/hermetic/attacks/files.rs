//! Reading, writing or learning of files outside the workspace.

use std::fs;
use std::os::unix::fs::symlink;

use crate::hermetic::kit::Bench;

#[test]
fn symlink_cannot_leave_the_workspace() {
    let bench = Bench::new();
    symlink(bench.outside(""), bench.path("dir")).unwrap();
    symlink(bench.outside("secret"), bench.path("file")).unwrap();
    symlink("../outside/secret", bench.path("climb")).unwrap();
    let script = "cat file climb dir/secret; ls dir; echo x > dir/new; echo x > file; \
                  echo x >> climb; cp file copy; tar cf t.tar dir/secret file; cat t.tar; \
                  ln -s ../outside up; cat up/secret; grep -r SECRET . ; find -L . -name secret";
    let ran = bench.run(script);
    assert!(!ran.stdout.contains("SECRET"), "{}", ran.stdout);
    assert_eq!(fs::read_to_string(bench.outside("secret")).unwrap(), "SECRET-OUTSIDE\n");
    assert_eq!(fs::read_dir(bench.outside("")).unwrap().count(), 1);
}
