//! Delivery to a command: the notice is its standard input.

use super::options::Command;
use std::process::Stdio;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Child;

/// Folders in which the command finds other programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs the command with this standard input. Returns an error unless it ends with the exit code 0 within its time. A
/// process that takes longer is killed, with the processes of its group.
pub async fn run(command: &Command, id: &str, input: &str) -> Result<(), String> {
    let program = command.program.display();
    // The environment of Weir perhaps contains passwords of upstreams.
    let mut child = tokio::process::Command::new(&command.program)
        .args(&command.arguments)
        .env_clear()
        .env("PATH", PATH)
        .env("WEIR_NOTICE", id)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let ended = tokio::time::timeout(command.timeout, feed(&mut child, input)).await;
    let Ok(ended) = ended else {
        kill(&mut child).await;
        return Err(format!("{program}: killed after {} s", command.timeout.as_secs()));
    };
    let status = ended.map_err(|error| format!("{program}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{program}: {status}")) }
}

/// Writes the input, and waits for the end of the process.
async fn feed(child: &mut Child, input: &str) -> std::io::Result<std::process::ExitStatus> {
    if let Some(mut stdin) = child.stdin.take() {
        // A command that does not read its input closes the pipe. Its exit code decides.
        let _ = stdin.write_all(input.as_bytes()).await;
        let _ = stdin.shutdown().await;
    }
    child.wait().await
}

async fn kill(child: &mut Child) {
    let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
    if let Some(group) = group {
        // This fails only if all processes of the group have ended.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.wait().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn shell(script: &str, timeout: Duration) -> Command {
        let arguments = vec!["-c".to_owned(), script.to_owned()];
        Command { program: "/bin/sh".into(), arguments, timeout }
    }

    #[tokio::test]
    async fn a_command_gets_the_notice_and_its_exit_code_decides() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("out");
        let script = format!("cat > {}; echo $WEIR_NOTICE >> {}", file.display(), file.display());
        assert_eq!(run(&shell(&script, Duration::from_secs(10)), "1-a", "{}\n").await, Ok(()));
        assert_eq!(std::fs::read_to_string(file).unwrap(), "{}\n1-a\n");
        let failed = run(&shell("exit 3", Duration::from_secs(10)), "1-a", &"x".repeat(1 << 20)).await;
        assert_eq!(failed, Err("/bin/sh: exit status: 3".to_owned()));
        let missing = Command { program: "/nonexistent".into(), ..shell("", Duration::from_secs(1)) };
        assert!(run(&missing, "1-a", "").await.is_err());
    }

    #[tokio::test]
    async fn a_command_that_takes_too_long_is_killed_with_its_children() {
        let began = Instant::now();
        let outcome = run(&shell("sleep 600 & wait", Duration::from_millis(100)), "1-a", "").await;
        assert!(outcome.unwrap_err().contains("killed"));
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}
