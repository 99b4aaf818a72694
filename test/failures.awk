# Passes on the output of go test, and repeats at its end which tests failed and what they said: a
# failed package prints the logs of all its servers too, so the reader of a long run would see neither.

{ print; fflush() }

/^ *--- FAIL: / { keep = 40 }
/^(panic: |fatal error: |WARNING: DATA RACE)/ { keep = 40; all = 1 }
/^(FAIL|ok  )/ { keep = /^FAIL\t/; all = 0 }
keep > 0 && (all || /^( |FAIL|--- FAIL: )/) { keep--; failed = failed $0 "\n" }
!all && !/^( |--- FAIL: )/ { keep = 0 }

END { if (failed != "") printf "\nFailed:\n%s", failed }
