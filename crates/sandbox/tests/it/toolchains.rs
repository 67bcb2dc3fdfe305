//! Toolchains, databases, a browser and editors do real work inside: what the list of allowed system
//! calls must let through.
//!
//! Those whose installation is large are started by `cargo xtask toolchains`, which installs them.

use std::fs;

use warrant_protocol::{Limits, Outcome};
use warrant_sandbox::{EnvValue, EnvVar, Invocation, Namespace, Network};

use crate::bench::{run, shell, workspace};

/// Writes files into a workspace, runs a script in it and expects it to succeed and to say this.
#[track_caller]
fn check(files: &[(&str, &str)], script: &str, expected: &str) {
    check_with(files, script, expected, |_| {});
}

#[track_caller]
fn check_with(
    files: &[(&str, &str)],
    script: &str,
    expected: &str,
    change: impl FnOnce(&mut Invocation),
) {
    let workspace = workspace();
    for (name, content) in files {
        fs::write(workspace.path().join(name), content).unwrap();
    }
    let mut invocation = shell(workspace.path(), script);
    invocation.limits = Limits { wall_ms: Some(240_000), ..Limits::danger_unlimited() };
    change(&mut invocation);
    let (report, memory) = run(&Namespace::new(), invocation);
    let told = format!("{}\n{}", memory.stdout(), memory.stderr());
    assert_eq!(report.unwrap().outcome, Outcome::Exited { code: 0 }, "{told}");
    assert!(memory.stdout().contains(expected), "{told}");
}

/// Lets an invocation reach registries, also where a test network resolves public names to the
/// range kept for documentation.
fn reach_registries(invocation: &mut Invocation) {
    let names = ["registry.npmjs.org", "pypi.org", "files.pythonhosted.org", "203.0.113.0/24"];
    invocation.network = Network::Allow(names.map(str::to_owned).to_vec());
    let certificates = "/etc/ssl/certs/ca-certificates.crt";
    for name in ["NODE_EXTRA_CA_CERTS", "PIP_CERT", "SSL_CERT_FILE"] {
        let value = EnvValue::Plain(certificates.to_owned());
        invocation.env.push(EnvVar { name: name.to_owned(), value });
    }
}

#[test]
fn make_and_gcc_build_a_library_and_a_program() {
    let makefile = "all: x\nx: main.o libf.so\n\tgcc -o x main.o -L. -lf -Wl,-rpath,'$$ORIGIN'\n\
        main.o: main.c\n\tgcc -c main.c\nlibf.so: f.c\n\tgcc -shared -fPIC -o libf.so f.c\n";
    let main = "#include <stdio.h>\nint f(int);\nint main(void) { printf(\"made %d\\n\", f(6)); return 0; }\n";
    let f = "int f(int x) { return x * 7; }\n";
    let files = [("Makefile", makefile), ("main.c", main), ("f.c", f)];
    check(&files, "make -j4 -s && ./x", "made 42");
}

#[test]
fn cmake_configures_builds_and_tests() {
    let project = "cmake_minimum_required(VERSION 3.10)\nproject(x C)\nenable_testing()\n\
        add_executable(x main.c)\nadd_test(NAME runs COMMAND x)\n";
    let main = "#include <stdio.h>\nint main(void) { puts(\"ran\"); return 0; }\n";
    let script =
        "cmake -S . -B build >log 2>&1 && cmake --build build -j2 >>log && cd build && ctest";
    check(&[("CMakeLists.txt", project), ("main.c", main)], script, "100% tests passed");
}

#[test]
fn sqlite_writes_with_a_log_and_reads_back() {
    let script = "sqlite3 x.db 'pragma journal_mode=wal; create table t(a); \
        with recursive n(i) as (select 1 union all select i+1 from n where i<1000) insert into t select i from n;' \
        && sqlite3 x.db 'select sum(a) from t; pragma integrity_check'";
    check(&[], script, "500500\nok");
}

#[test]
fn postgres_makes_a_cluster_and_serves_it_by_a_unix_socket() {
    let script = "PATH=$(echo /usr/lib/postgresql/*/bin):$PATH; initdb -D /tmp/pg -U me --no-sync >log 2>&1 || { cat log; exit 1; }\n\
        pg_ctl -D /tmp/pg -w -l /tmp/pglog -o '-k /tmp -c listen_addresses=' start >/dev/null || { cat /tmp/pglog; exit 1; }\n\
        psql -h /tmp -U me postgres -Atc 'create table t as select generate_series(1, 1000) as a' >/dev/null\n\
        psql -h /tmp -U me postgres -Atc 'select sum(a) from t' && pg_ctl -D /tmp/pg -m fast stop >/dev/null && echo stopped";
    check(&[], script, "500500\nstopped");
}

#[test]
fn redis_serves_by_a_unix_socket_and_saves() {
    let script = "redis-server --port 0 --unixsocket /tmp/r.sock --daemonize yes --dir . >/dev/null\n\
        for i in 1 2 3 4 5 6 7 8 9; do redis-cli -s /tmp/r.sock ping 2>/dev/null && break; sleep 0.2; done\n\
        redis-cli -s /tmp/r.sock set a 42 && redis-cli -s /tmp/r.sock save && redis-cli -s /tmp/r.sock get a\n\
        redis-cli -s /tmp/r.sock shutdown nosave; test -s dump.rdb && echo saved";
    check(&[], script, "42\nsaved");
}

#[test]
fn vim_edits_a_file() {
    let script = "vim -u NONE -es -c '%s/one/two/' -c 'wq' text; cat text";
    check(&[("text", "one\n")], script, "two\n");
}

#[test]
fn tmux_runs_a_session_of_its_own() {
    let script = "export TERM=screen SHELL=/bin/sh; tmux -f /dev/null new-session -d -s s\n\
        tmux send-keys -t s 'echo $((6 * 7)) > out' Enter\n\
        for i in $(seq 100); do test -s out && break; sleep 0.1; done; cat out; tmux kill-server";
    check(&[], script, "42\n");
}

#[test]
fn chromium_renders_a_page() {
    let page = "<body><p id=x></p><script>x.textContent = 'rendered ' + 6 * 7</script>";
    let script = "export HOME=/tmp; timeout 90 /usr/lib/chromium/chromium --headless --no-sandbox --disable-gpu --no-first-run \
        --user-data-dir=/tmp/profile --virtual-time-budget=2000 --dump-dom file://$PWD/page.html 2>err || { cat err; exit 1; }";
    check(&[("page.html", page)], script, "rendered 42");
}

#[test]
#[ignore = "large to install: cargo xtask toolchains"]
fn go_builds_and_runs_with_goroutines_and_sockets() {
    let program = "package main\nimport (\"fmt\"; \"net\"; \"os/exec\"; \"sync\")\nfunc main() {\n\
        l, err := net.Listen(\"unix\", \"/tmp/go.sock\"); if err != nil { panic(err) }\n\
        go func() { c, _ := l.Accept(); c.Write([]byte(\"hello\")); c.Close() }()\n\
        c, err := net.Dial(\"unix\", \"/tmp/go.sock\"); if err != nil { panic(err) }\n\
        b := make([]byte, 5); c.Read(b)\n\
        var w sync.WaitGroup; var m sync.Mutex; n := 0\n\
        for i := 0; i < 100; i++ { w.Add(1); go func() { m.Lock(); n++; m.Unlock(); w.Done() }() }; w.Wait()\n\
        o, err := exec.Command(\"echo\", \"child\").Output(); if err != nil { panic(err) }\n\
        fmt.Println(\"go\", string(b), n, string(o)) }\n";
    let script = "export GOCACHE=/tmp/go GOPATH=/tmp/gopath GOFLAGS=-mod=mod CGO_ENABLED=0\n\
        go mod init x 2>/dev/null; go vet ./... && go build -o x . && ./x";
    check(&[("main.go", program)], script, "go hello 100 child");
}

#[test]
#[ignore = "large to install: cargo xtask toolchains"]
fn javac_compiles_and_java_runs_with_threads_and_files() {
    let program = "import java.nio.file.*; import java.util.concurrent.*;\n\
        public class Main { public static void main(String[] a) throws Exception {\n\
        var pool = Executors.newFixedThreadPool(4); var sum = new java.util.concurrent.atomic.AtomicInteger();\n\
        for (int i = 0; i < 100; i++) { int n = i; pool.submit(() -> sum.addAndGet(n)); }\n\
        pool.shutdown(); pool.awaitTermination(20, TimeUnit.SECONDS);\n\
        Files.writeString(Path.of(\"out\"), \"sum \" + sum); System.gc();\n\
        var p = new ProcessBuilder(\"cat\", \"out\").inheritIO().start(); p.waitFor(); } }\n";
    // Debian keeps its settings beside the system.
    let settings = fs::read_dir("/etc").unwrap().flatten().map(|entry| entry.path());
    let settings = settings.filter(|path| path.to_string_lossy().starts_with("/etc/java-"));
    let files = [("Main.java", program)];
    check_with(&files, "javac Main.java && java -Xmx256m Main", "sum 4950", |invocation| {
        invocation.files.read_roots.extend(settings);
    });
}

#[test]
#[ignore = "large to install: cargo xtask toolchains"]
fn ffmpeg_encodes_a_film() {
    let script = "ffmpeg -v error -f lavfi -i testsrc=duration=1:size=64x64:rate=10 -y out.mkv && \
        ffprobe -v error -count_frames -show_entries stream=nb_read_frames -of csv=p=0 out.mkv";
    check(&[], script, "10");
}

#[test]
#[ignore = "fetches packages: cargo xtask toolchains"]
fn tsc_tsx_and_vitest_work() {
    let package = r#"{ "name": "x", "version": "1.0.0", "type": "module" }"#;
    let sum = "export const sum = (a: number, b: number): number => a + b;\n";
    let test = "import { expect, test } from 'vitest';\nimport { sum } from './sum';\n\
        test('sums', () => { expect(sum(40, 2)).toBe(42); });\n";
    let main = "import { sum } from './sum';\nconsole.log('tsx', sum(40, 2));\n";
    let script = "export HOME=/tmp; npm install --no-audit --no-fund --silent typescript@5 tsx@4 vitest@2 2>&1 && \
        npx tsc --strict --module esnext --target es2022 --outDir out sum.ts && node -e \"import('./out/sum.js').then(m => console.log('tsc', m.sum(40, 2)))\" && \
        npx tsx main.ts && npx vitest run 2>&1";
    let files =
        [("package.json", package), ("sum.ts", sum), ("sum.test.ts", test), ("main.ts", main)];
    check_with(&files, script, "1 passed", reach_registries);
}

#[test]
#[ignore = "fetches packages: cargo xtask toolchains"]
fn uv_makes_an_environment_and_installs() {
    let script = "export HOME=/tmp; /usr/bin/python3 -m pip install -q --no-cache-dir --disable-pip-version-check --target lib uv 2>&1 && \
        lib/bin/uv venv -q -p /usr/bin/python3 env && lib/bin/uv pip install -q --native-tls -p env/bin/python six==1.17.0 && \
        env/bin/python -c 'import six; print(\"six\", six.__version__)'";
    check_with(&[], script, "six 1.17.0", reach_registries);
}
