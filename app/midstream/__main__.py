from midstream.cli import main

raise SystemExit(main())
