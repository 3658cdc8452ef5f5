if __name__ == "__main__":
    from evolution.cli import main

    main()
