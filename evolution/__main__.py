import signal

if __name__ == "__main__":
    # A ctrl-C during the imports ends the process without a traceback of them; `main` takes it back.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from evolution.cli import main

    main()
