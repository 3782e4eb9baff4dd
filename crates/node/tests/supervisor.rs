//! The supervisor with real processes: small shell and Python servers on loopback.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use node::config::{Scheme, Service};
use node::supervisor::{Event, Status, Supervisor, SupervisorError};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(10);

struct Stage {
    // Fields are dropped in this order: the directory goes when the servers are gone.
    supervisor: Option<Supervisor>,
    events: Receiver<Event>,
    _dir: TempDir,
}

impl Stage {
    fn new(services: &[Service]) -> Stage {
        Stage::within(tempfile::tempdir().unwrap(), services)
    }

    fn within(dir: TempDir, services: &[Service]) -> Stage {
        let (sender, events) = channel();
        let on_event = move |event| drop(sender.send(event));
        let supervisor = Supervisor::start(services, dir.path(), on_event).unwrap();
        Stage { _dir: dir, events, supervisor: Some(supervisor) }
    }

    fn supervisor(&self) -> &Supervisor {
        self.supervisor.as_ref().unwrap()
    }

    /// The next event that is about a process, not about its listener.
    fn next(&self) -> Event {
        loop {
            match self.events.recv_timeout(LIMIT).expect("an event within the limit") {
                Event::Listening { .. } | Event::NotListening { .. } => {}
                event => return event,
            }
        }
    }

    fn started(&self) -> u32 {
        match self.next() {
            Event::Started { pid, .. } => pid,
            other => panic!("{other:?}"),
        }
    }

    fn exited(&self) -> (Status, bool) {
        match self.next() {
            Event::Exited { status, crashed, .. } => (status, crashed),
            other => panic!("{other:?}"),
        }
    }

    fn stop(&mut self, grace: Duration) {
        self.supervisor.take().unwrap().stop(grace);
    }
}

fn service(name: &str, port: u16, command: &[&str]) -> Service {
    let words = command.iter().map(|word| (*word).to_owned()).collect();
    Service {
        name: name.to_owned(),
        addresses: vec![IpAddr::from([127, 0, 0, 1])],
        port,
        command: Some(words),
        user: None,
        workdir: None,
        scheme: Scheme::Track,
        flow_budget_mib: 1,
        message: None,
        environment: Default::default(),
    }
}

fn shell(script: &str) -> Service {
    service("sh", 1, &["sh", "-c", script])
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "not so within the limit: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether the process exists and is more than a zombie.
fn alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

/// The process number that a script writes into a file.
fn pid_in(path: &Path) -> u32 {
    until("the script writes its number", || {
        fs::read_to_string(path).is_ok_and(|text| text.ends_with('\n'))
    });
    fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

fn path_in(dir: &TempDir, name: &str) -> PathBuf {
    dir.path().join(name)
}

#[test]
fn listening_is_reported_when_connections_are_taken() {
    let port = free_port();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    // The socket is bound for a while before it listens.
    let script = format!(
        "import socket,time,os\ns=socket.socket()\ns.bind(('127.0.0.1',{port}))\ntime.sleep(.1)\n\
         s.listen()\ns.accept()\ns.close()\ntime.sleep(60)"
    );
    let python = service("py", port, &["python3", "-c", &script]);
    let mut stage = Stage::new(&[python]);
    assert!(matches!(stage.events.recv_timeout(LIMIT), Ok(Event::Started { .. })));
    let listening = Event::Listening { service: "py".to_owned() };
    assert_eq!(stage.events.recv_timeout(LIMIT), Ok(listening));
    let _client = TcpStream::connect(address).expect("it listens");
    // The server closes its listener and lives on.
    let deaf = Event::NotListening { service: "py".to_owned() };
    assert_eq!(stage.events.recv_timeout(LIMIT), Ok(deaf));
    stage.stop(Duration::ZERO);
}

#[test]
fn an_operators_own_server_is_watched_too() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut own = service("own", listener.local_addr().unwrap().port(), &[]);
    own.command = None;
    let stage = Stage::new(&[own]);
    let next = || stage.events.recv_timeout(LIMIT);
    assert_eq!(next(), Ok(Event::Listening { service: "own".to_owned() }));
    drop(listener);
    assert_eq!(next(), Ok(Event::NotListening { service: "own".to_owned() }));
}

/// As programs written in Go do, unless told otherwise.
#[test]
fn a_multipath_listener_is_told_before_it_counts() {
    let port = free_port();
    let dir = tempfile::tempdir().unwrap();
    let seen = path_in(&dir, "seen");
    // A listener of Multipath TCP, and once that has been seen an ordinary one.
    let script = format!(
        "import os,signal,socket,time\ndef listen(protocol):\n s=socket.socket(2,1,protocol)\n \
         s.setsockopt(1,2,1)\n s.bind(('127.0.0.1',{port}))\n s.listen()\n return s\n\
         s=listen(262)\nwhile not os.path.exists('{}'): time.sleep(.01)\ns.close()\n\
         s=listen(6)\nsignal.pause()\n",
        seen.display()
    );
    let stage = Stage::within(dir, &[service("go", port, &["python3", "-c", &script])]);
    let next = || stage.events.recv_timeout(LIMIT).expect("an event within the limit");
    let service = "go".to_owned();
    assert!(matches!(next(), Event::Started { .. }));
    assert_eq!(next(), Event::Multipath { service: service.clone(), multipath: true });
    assert_eq!(next(), Event::Listening { service: service.clone() });
    fs::write(seen, "").unwrap();
    assert_eq!(next(), Event::Multipath { service, multipath: false });
}

#[test]
fn a_crash_is_told_from_an_exit_and_the_server_started_again() {
    let stage = Stage::new(&[shell("kill -SEGV $$")]);
    stage.started();
    assert_eq!(stage.exited(), (Status::Signal(libc::SIGSEGV), true));
    stage.started();

    let stage = Stage::new(&[shell("exit 3")]);
    stage.started();
    assert_eq!(stage.exited(), (Status::Code(3), true));

    let stage = Stage::new(&[shell("exit 0")]);
    stage.started();
    assert_eq!(stage.exited(), (Status::Code(0), false));
    stage.started();
}

#[test]
fn restarts_slow_down() {
    let begun = Instant::now();
    let stage = Stage::new(&[shell("exit 1")]);
    for _ in 0..4 {
        stage.started();
        stage.exited();
    }
    // 100 + 200 + 400 ms lie between four starts.
    assert!(begun.elapsed() >= Duration::from_millis(700), "{:?}", begun.elapsed());
}

#[test]
fn a_command_that_cannot_run_is_reported_and_tried_again() {
    let mut nobody = shell("true");
    nobody.user = Some("no-such-user".to_owned());
    for (service, says) in
        [(service("x", 1, &["/nonexistent/program"]), "/nonexistent/program"), (nobody, "no user")]
    {
        let stage = Stage::new(&[service]);
        for _ in 0..2 {
            let Event::Unstartable { why, .. } = stage.next() else { panic!() };
            assert!(why.contains(says), "{why:?} does not say {says:?}");
        }
    }
}

#[test]
fn a_server_gets_its_user_directory_and_environment_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let out = path_in(&dir, "out");
    fs::write(&out, "").unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(&out, open).unwrap();
    let script = format!(
        "(id -un; id -Gn; pwd; echo $K; env | cut -d= -f1 | sort | tr '\\n' ' '; \
         read x && echo input) > {0}; (echo; echo done) >> {0}; sleep 60",
        out.display()
    );
    let mut quiet = shell(&script);
    quiet.user = Some("nobody".to_owned());
    quiet.workdir = Some("/usr".into());
    quiet.environment = [("K".to_owned(), "v w".to_owned())].into();
    let outer = path_in(&dir, "");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(outer, open).unwrap();
    let stage = Stage::within(dir, &[quiet]);
    let pid = stage.started();
    until("the script has written", || fs::read_to_string(&out).unwrap().ends_with("done\n"));
    let text = fs::read_to_string(&out).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "nobody");
    assert_eq!(lines[1], "nogroup");
    assert_eq!(lines[2..4], ["/usr", "v w"]);
    // Some shells add _, PWD, OLDPWD and SHLVL.
    let known = "HOME K LANG PATH PWD USER _ OLDPWD SHLVL";
    let known: Vec<&str> = known.split(' ').collect();
    for name in lines[4].split_whitespace() {
        assert!(known.contains(&name), "{name} in {text}");
    }
    assert!(!text.contains("input"));
    // SAFETY: getsid takes an integer.
    assert_eq!(unsafe { libc::getsid(pid as i32) }, pid as i32);
}

#[test]
fn much_output_does_not_block_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let done = path_in(&dir, "done");
    let script = format!("head -c 3000000 /dev/zero; echo yes > {}; sleep 60", done.display());
    let stage = Stage::within(dir, &[shell(&script)]);
    stage.started();
    says_yes(&done);
}

fn says_yes(path: &Path) {
    until("the file appears", || fs::read_to_string(path).is_ok_and(|text| text == "yes\n"));
}

#[test]
fn a_crash_takes_the_rest_of_its_processes_along() {
    let dir = tempfile::tempdir().unwrap();
    let note = path_in(&dir, "worker");
    // The worker ignores SIGTERM and has a process group of its own.
    let script = format!(
        "set -m; (trap '' TERM; echo $$ > /dev/null; sh -c 'echo $PPID > {}; sleep 60') & wait",
        note.display()
    );
    let stage = Stage::within(dir, &[shell(&script)]);
    let leader = stage.started();
    let worker = pid_in(&note);
    // SAFETY: kill takes two integers; the leader is a child of the supervisor in this process.
    unsafe { libc::kill(leader as i32, libc::SIGKILL) };
    assert_eq!(stage.exited(), (Status::Signal(libc::SIGKILL), true));
    stage.started();
    // Started again only after everything of the old run is gone.
    assert!(!alive(worker));
}

#[test]
fn stop_asks_first_and_kills_after_the_grace() {
    let dir = tempfile::tempdir().unwrap();
    let (polite, trap) = (path_in(&dir, "polite"), path_in(&dir, "trap"));
    let script = format!(
        "trap 'echo yes > {}; exit 0' TERM; echo $$ > {}; while :; do sleep 0.01; done",
        polite.display(),
        trap.display()
    );
    let mut stage = Stage::within(dir, &[shell(&script)]);
    stage.started();
    pid_in(&trap);
    let begun = Instant::now();
    stage.supervisor().stop_service("sh", Duration::from_secs(9));
    assert_eq!(stage.exited(), (Status::Code(0), false));
    assert!(begun.elapsed() < Duration::from_secs(5));
    says_yes(&polite);
    // It stays stopped until it is asked for again.
    stage.supervisor().start_service("sh");
    stage.started();
    stage.stop(Duration::from_secs(5));

    let dir = tempfile::tempdir().unwrap();
    let trap = path_in(&dir, "trap");
    let script =
        format!("trap '' TERM; echo $$ > {}; while :; do sleep 0.01; done", trap.display());
    let mut stage = Stage::within(dir, &[shell(&script)]);
    let pid = stage.started();
    pid_in(&trap);
    let begun = Instant::now();
    stage.stop(Duration::from_millis(200));
    assert!(begun.elapsed() >= Duration::from_millis(200));
    assert!(!alive(pid));
    assert_eq!(stage.exited(), (Status::Signal(libc::SIGKILL), false));
}

#[test]
fn a_dead_daemons_servers_are_ended_and_strangers_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (leader, worker) = (path_in(&dir, "leader"), path_in(&dir, "worker"));
    let script = format!(
        "echo $$ > {}; sh -c 'echo $$ > {}; sleep 61; true' & wait",
        leader.display(),
        worker.display()
    );
    // A daemon: this test program again, killed the hard way.
    let mut daemon = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper_daemon", "--ignored", "--nocapture"])
        .env("HELPER_DIR", dir.path())
        .env("HELPER_SCRIPT", &script)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let (leader, worker) = (pid_in(&leader), pid_in(&worker));
    // While it lives, a second daemon must not touch its servers.
    let busy = Supervisor::start(&[], dir.path(), |_| ()).unwrap_err();
    assert!(matches!(busy, SupervisorError::InUse(_)), "{busy}");
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    assert!(alive(leader) && alive(worker), "orphans survive their daemon");

    // A stranger: alive, in a cgroup that a record of another boot names.
    let records = path_in(&dir, "servers");
    let genuine = fs::read_to_string(records.join("sh")).unwrap();
    let (boot, cgroup) = genuine.split_once('\n').unwrap();
    let stranger = Stage::new(&[shell("sleep 62")]);
    let sleeping = stranger.started();
    let place = fs::read_to_string(format!("/proc/{sleeping}/cgroup")).unwrap();
    let place = place.lines().find_map(|line| line.strip_prefix("0::")).unwrap();
    assert_ne!(place, cgroup.trim(), "every start has a cgroup of its own");
    fs::write(records.join("other"), format!("{}\n{place}\n", boot.replace('-', "+"))).unwrap();
    // And records that are no records, or of servers that are gone.
    fs::write(records.join("gone"), format!("{boot}\n{place}-gone\n")).unwrap();
    fs::write(records.join("empty"), "").unwrap();
    fs::write(records.join("garbage"), b"\xff\xff 1 2\n(((\n").unwrap();

    let supervisor = Supervisor::start(&[], dir.path(), |_| ()).unwrap();
    assert!(!alive(leader) && !alive(worker), "orphans are gone before anything is started");
    assert!(alive(sleeping), "a stranger was killed");
    drop(supervisor);
    let left: Vec<_> = fs::read_dir(&records).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, [".lock"], "records are used once");
}

/// Invariant 8: what the servers print must not become their error when the daemon dies.
#[test]
fn a_server_can_print_after_its_daemon_died() {
    let dir = tempfile::tempdir().unwrap();
    let (started, printed) = (path_in(&dir, "started"), path_in(&dir, "printed"));
    let go = path_in(&dir, "go");
    // A shell's echo fails when nobody reads the pipe, and kills it unless SIGPIPE is ignored.
    let script = format!(
        "trap '' PIPE; echo $$ > {}; until [ -e {go} ]; do sleep 0.01; done; \
         if echo out && echo error >&2; then echo $$ > {}; fi; sleep 63",
        started.display(),
        printed.display(),
        go = go.display()
    );
    let mut daemon = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper_daemon", "--ignored", "--nocapture"])
        .env("HELPER_DIR", dir.path())
        .env("HELPER_SCRIPT", &script)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let server = pid_in(&started);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    fs::write(&go, "").unwrap();
    assert_eq!(pid_in(&printed), server, "printing succeeded");
    drop(Supervisor::start(&[], dir.path(), |_| ()).unwrap());
}

#[test]
fn an_orphan_that_left_its_session_is_known_by_its_cgroup() {
    let dir = tempfile::tempdir().unwrap();
    let (leader, worker) = (path_in(&dir, "leader"), path_in(&dir, "worker"));
    let script = format!(
        "echo $$ > {}; setsid sh -c 'echo $$ > {}; sleep 61; true' & wait",
        leader.display(),
        worker.display()
    );
    let mut daemon = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper_daemon", "--ignored", "--nocapture"])
        .env("HELPER_DIR", dir.path())
        .env("HELPER_SCRIPT", &script)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let (leader, worker) = (pid_in(&leader), pid_in(&worker));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    // SAFETY: kill takes two integers; the leader is the orphan that the helper started.
    unsafe { libc::kill(leader as i32, libc::SIGKILL) };
    until("the leader is reaped by somebody", || !alive(leader));
    assert!(alive(worker));
    let supervisor = Supervisor::start(&[], dir.path(), |_| ()).unwrap();
    assert!(!alive(worker));
    drop(supervisor);
}

/// As daemons do: a session of its own, and a parent that exits.
fn background(note: &Path, then: &str) -> Service {
    shell(&format!("setsid sh -c 'echo $$ > {}; {then}' & exit 0", note.display()))
}

#[test]
fn a_server_that_goes_into_the_background_runs_until_its_last_process_ends() {
    let dir = tempfile::tempdir().unwrap();
    let note = path_in(&dir, "worker");
    let stage = Stage::within(dir, &[background(&note, "sleep 64; true")]);
    let leader = stage.started();
    let went = Event::Backgrounded { service: "sh".to_owned(), pid: leader };
    assert_eq!(stage.next(), went);
    let worker = pid_in(&note);
    let cgroup = fs::read_to_string(format!("/proc/{worker}/cgroup")).unwrap();
    assert!(cgroup.contains("/steadfast-sh-"), "{cgroup}");
    fs::remove_file(&note).unwrap();
    // Its child lives on: not yet ended.
    let children = fs::read_to_string(format!("/proc/{worker}/task/{worker}/children")).unwrap();
    let child: u32 = children.trim().parse().unwrap();
    // SAFETY: kill takes two integers; both are processes of the server in this test.
    unsafe { libc::kill(worker as i32, libc::SIGKILL) };
    until("the worker is gone", || !alive(worker));
    assert!(alive(child), "what is left in the background is left alone");
    // SAFETY: as above.
    unsafe { libc::kill(child as i32, libc::SIGSEGV) };
    let Event::Exited { status: Status::Signal(_), crashed: true, .. } = stage.next() else {
        panic!("the end of the last process is the server's")
    };
    assert_ne!(stage.started(), leader);
}

#[test]
fn a_server_in_the_background_is_stopped_like_any_other() {
    for stubborn in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let note = path_in(&dir, "worker");
        let then =
            if stubborn { "trap \"\" TERM; while :; do sleep 0.01; done" } else { "sleep 65" };
        let mut stage = Stage::within(dir, &[background(&note, then)]);
        stage.started();
        assert!(matches!(stage.next(), Event::Backgrounded { .. }));
        let worker = pid_in(&note);
        let begun = Instant::now();
        let grace = if stubborn { Duration::from_millis(200) } else { LIMIT };
        stage.stop(grace);
        assert!(!alive(worker), "stopping leaves nothing behind");
        assert!(!stubborn || begun.elapsed() >= grace);
        assert!(begun.elapsed() < LIMIT / 2);
        assert!(!stage.exited().1, "it was asked to");
    }
}

/// A crash is the end of everything that the server ever forked.
#[test]
fn a_crash_takes_processes_of_other_sessions_along() {
    let dir = tempfile::tempdir().unwrap();
    let note = path_in(&dir, "worker");
    let script = format!("setsid sh -c 'echo $$ > {}; sleep 66; true' & wait", note.display());
    let stage = Stage::within(dir, &[shell(&script)]);
    let leader = stage.started();
    let worker = pid_in(&note);
    // SAFETY: kill takes two integers; the leader is a child of the supervisor in this process.
    unsafe { libc::kill(leader as i32, libc::SIGKILL) };
    assert_eq!(stage.exited(), (Status::Signal(libc::SIGKILL), true));
    stage.started();
    assert!(!alive(worker));
}

/// Not a test: the daemon that other tests kill.
#[test]
#[ignore = "started by other tests"]
fn helper_daemon() {
    let (Some(dir), Ok(script)) = (std::env::var_os("HELPER_DIR"), std::env::var("HELPER_SCRIPT"))
    else {
        return;
    };
    let _supervisor = Supervisor::start(&[shell(&script)], Path::new(&dir), |_| ()).unwrap();
    std::thread::sleep(Duration::from_secs(60));
}
