// Command failures passes on the output of go test, and repeats at its end the failed tests with their output. A failed
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

// Of a long failure, its first lines and its last ones are repeated: a test that compares much ends with the difference.
const (
	firstLines = 15
	lastLines  = 45
)

// A failure is one test or one process that failed, with its output.
type failure struct{ lines []string }

// String returns the lines to repeat.
func (f failure) String() string {
	if left := len(f.lines) - firstLines - lastLines; left > 0 {
		return strings.Join(f.lines[:firstLines], "") + fmt.Sprintf("    … %d lines are above …\n", left) + strings.Join(f.lines[len(f.lines)-lastLines:], "")
	}
	return strings.Join(f.lines, "")
}

func run(in io.Reader, out io.Writer) error {
	var failed []failure
	within, all := false, false // whether the lines belong to a failure, and whether they need no indentation
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
			within, failed = true, append(failed, failure{})
		case ofProcess.MatchString(line):
			within, all, failed = true, true, append(failed, failure{})
		case result.MatchString(line):
			within, all = false, false
			if strings.HasPrefix(line, "FAIL\t") {
				failed = append(failed, failure{[]string{line}})
			}
		}
		if within && (all || ofTest.MatchString(line)) {
			last := &failed[len(failed)-1]
			last.lines = append(last.lines, line)
		} else if !all {
			within = false
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if len(failed) == 0 {
		return nil
	}
	fmt.Fprint(out, "\nFailed:\n")
	for _, f := range failed {
		fmt.Fprint(out, f)
	}
	return nil
}
