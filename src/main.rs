use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The allocator asks the kernel for huge pages. Weir would then hold 2 MiB where it needs 4 KiB.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    weir::cli::run()
}
