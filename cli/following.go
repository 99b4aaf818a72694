package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/moving"
)

// following are the flags of commands that wait until objects have moved.
type following struct {
	wait    bool
	timeout time.Duration
}

func (f *following) addFlags(flags *pflag.FlagSet, wait string) {
	flags.BoolVar(&f.wait, "wait", f.wait, wait)
	flags.DurationVar(&f.timeout, "timeout", f.timeout, "How long to wait; 0 is without limit. The change continues afterwards.")
}

// context ends with the timeout.
func (f *following) context(parent context.Context) (context.Context, context.CancelFunc) {
	if f.timeout <= 0 {
		return context.WithCancel(parent)
	}
	return context.WithTimeout(parent, f.timeout)
}

// objects follows objects until they have arrived or returned.
func (f *following) objects(cmd *cobra.Command, follower *moving.Follower, moved moving.Object) error {
	ctx, cancel := f.context(cmd.Context())
	defer cancel()
	shown := newProgressLine(cmd.ErrOrStderr())
	var returned []moving.Outcome
	var deleted []error
	err := follower.Wait(ctx, func(p moving.Progress) {
		text := p.Text
		if p.Total > 1 {
			text = fmt.Sprintf("%d of %d objects moved; %s", p.Done, p.Total, p.Text)
		}
		shown.show(p.Fraction, text)
	}, func(o moving.Outcome) {
		shown.end()
		switch {
		case o.Deleted:
			deleted = append(deleted, fmt.Errorf("%s was deleted meanwhile", o.Object))
			return
		case o.RolledBack != nil:
			returned = append(returned, o)
			return
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s moved\n", o.Argument())
	})
	shown.end()
	if err != nil {
		inNamespace := moved.InNamespace()
		if interpret.IsNamespace(moved.Kind) {
			inNamespace = " -n " + moved.Name
		}
		return stoppedWaiting(err, f.timeout, follower.Pending(), fmt.Sprintf("The move goes on: `atoll transitions%s` shows it, and `atoll abort KIND/NAME%s` makes an object return", inNamespace, inNamespace))
	}
	return errors.Join(append(deleted, rolledBack(returned, moved))...)
}

// stoppedWaiting returns an error that says that the wait ended and the change goes on.
func stoppedWaiting(err error, timeout time.Duration, pending []string, next string) error {
	const most = 5
	why := "stopped waiting: " + err.Error()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		why = fmt.Sprintf("not done after %s", timeout)
	case errors.Is(err, context.Canceled):
		why = "stopped waiting"
	}
	lines := []string{why}
	for _, p := range pending[:min(most, len(pending))] {
		lines = append(lines, "  "+p)
	}
	if more := len(pending) - most; more > 0 {
		lines = append(lines, fmt.Sprintf("  and %d more", more))
	}
	if joined, is := err.(interface{ Unwrap() []error }); is { // the last answer of a server that did not answer
		for _, unread := range joined.Unwrap()[1:] {
			lines = append(lines, "  "+unread.Error())
		}
	}
	return errors.New(strings.Join(append(lines, next), "\n"))
}

// rolledBack returns an error about objects that returned. moved has the label: one of them, or their namespace.
func rolledBack(returned []moving.Outcome, moved moving.Object) error {
	if len(returned) == 0 {
		return nil
	}
	const most = 10
	var lines []string
	for _, o := range returned[:min(most, len(returned))] {
		a := o.RolledBack
		lines = append(lines, fmt.Sprintf("%s did not move, and runs where it ran before: cluster %s %s (%s)", o.Object, a.Name, a.Message, a.Reason))
	}
	if more := len(returned) - most; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	o := returned[0]
	retry := fmt.Sprintf("`atoll retry %s%s`", o.Argument(), o.InNamespace())
	if until := o.RolledBack.Until; until != nil {
		retry = fmt.Sprintf("It is tried again after %s, or when the object changes. To try again now, correct the cause and run %s", until.UTC().Format(time.RFC3339), retry)
	} else {
		retry = "To try again, run " + retry
	}
	lines = append(lines, fmt.Sprintf("%s; to stop trying, run `atoll move %s%s --anywhere`", retry, moved.Argument(), moved.InNamespace()))
	return errors.New(strings.Join(lines, "\n"))
}

// progressLine shows progress: on a terminal as a bar that is redrawn, otherwise as lines.
type progressLine struct {
	out   io.Writer
	live  bool
	width int // of a line, if live
	drawn bool
	last  string
}

// narrowest is the width of terminals that do not report theirs.
const narrowest = 80

func newProgressLine(out io.Writer) *progressLine {
	p := &progressLine{out: out, live: onTerminal(out), width: narrowest}
	if f, is := out.(*os.File); is && p.live {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			p.width = width
		}
	}
	return p
}

// show shows a text, and a bar for the fraction that is done, unless that is unknown, which is -1.
func (p *progressLine) show(fraction float64, text string) {
	if !p.live {
		if text != p.last {
			fmt.Fprintln(p.out, text)
			p.last = text
		}
		return
	}
	const width = 20
	most := max(p.width-4, width) // a line that wraps cannot be redrawn
	line := []rune(text)
	if fraction >= 0 {
		full := min(int(fraction*width), width)
		line = []rune("[" + strings.Repeat("=", full) + strings.Repeat(" ", width-full) + "] " + text)
	}
	if len(line) > most {
		line = append(line[:most-1], '…')
	}
	fmt.Fprintf(p.out, "\r%s\x1b[K", string(line))
	p.drawn = true
}

// end removes the bar.
func (p *progressLine) end() {
	if p.drawn {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.drawn = false
	}
}
