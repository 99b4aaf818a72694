// Command failures passes on the output of go test, and repeats at its end which tests failed and what they printed. A failed
// package prints the logs of all its servers too, so the reader of a long run would see neither.
//
//	{ go test ./a; go test ./b; } 2>&1 | go run ./test/failures
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "failures:", err)
		os.Exit(1)
	}
}

// maxLines is how many lines of one failure are repeated.
const maxLines = 40

func run(in io.Reader, out io.Writer) error {
	var failed []string
	left, all := 0, false // lines to keep, and whether they need no indentation
	// A failure's messages are indented below its name; those of servers are not.
	ofTest := regexp.MustCompile(`^( |--- FAIL: )`)
	begins := regexp.MustCompile(`^ *--- FAIL: `)
	ofProcess := regexp.MustCompile(`^(panic: |fatal error: |WARNING: DATA RACE)`)
	result := regexp.MustCompile(`^(FAIL|ok  )`)
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if _, err := io.WriteString(out, line); err != nil {
			return err
		}
		switch {
		case begins.MatchString(line):
			left = maxLines
		case ofProcess.MatchString(line):
			left, all = maxLines, true
		case result.MatchString(line):
			left, all = 0, false
			if strings.HasPrefix(line, "FAIL\t") {
				failed = append(failed, line)
			}
		}
		if left > 0 && (all || ofTest.MatchString(line)) {
			left--
			failed = append(failed, line)
		} else if !all {
			left = 0
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if len(failed) > 0 {
		fmt.Fprintf(out, "\nFailed:\n%s", strings.Join(failed, ""))
	}
	return nil
}
