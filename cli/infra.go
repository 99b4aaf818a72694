package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/terminal"
)

// errChanges makes the program exit with 2 where that is asked for.
var errChanges = errors.New("something would change")

// infraCommand is what the commands of infrastructure share.
type infraCommand struct {
	atoll     target
	namespace string
	formats   []string
	output    string
	noColor   bool
}

// addFlags adds those that every one of them has. Without formats there is no -o.
func (c *infraCommand) addFlags(flags *pflag.FlagSet, formats ...string) {
	flags.StringVarP(&c.namespace, "namespace", "n", "", "Namespace. The default is that of the kubeconfig's context, or default.")
	if c.formats = formats; len(formats) > 1 {
		flags.StringVarP(&c.output, "output", "o", "", outputFlag(formats...)+" The default is for people.")
	}
	flags.BoolVar(&c.noColor, "no-color", false, "Write no colours, even on a terminal. Setting NO_COLOR does the same.")
	c.atoll.addPlainFlags(flags)
}

// session connects with the Atoll that the flags name.
func (c *infraCommand) session(cmd *cobra.Command) (*terminal.Session, error) {
	if c.output != "" {
		if err := checkFormat(c.output, c.formats...); err != nil {
			return nil, err
		}
	}
	config, err := c.atoll.config()
	if err != nil {
		return nil, err
	}
	if c.namespace == "" {
		if c.namespace, _, err = c.atoll.loading().Namespace(); err != nil {
			return nil, fmt.Errorf("find the namespace of the kubeconfig's context: %w: name one with -n", err)
		}
	}
	s, err := terminal.Connect(config)
	if err != nil {
		return nil, err
	}
	s.Namespace = c.namespace
	s.In, s.Out, s.Err = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	s.Attended = attended(s.In)
	s.Live = onTerminal(s.Err)
	s.Color = !c.noColor && os.Getenv("NO_COLOR") == "" && onTerminal(s.Out)
	s.Program = cmd.Root().CommandPath()
	for _, flag := range []struct{ name, value string }{{"kubeconfig", c.atoll.kubeconfig}, {"context", c.atoll.context}} {
		if flag.value != "" {
			s.Flags += " --" + flag.name + " " + shellWord(flag.value)
		}
	}
	return s, nil
}

// attended tells whether somebody types what is read.
func attended(in io.Reader) bool {
	file, ok := in.(*os.File)
	return ok && onTerminal(file)
}

// shellWord quotes what a shell would take apart.
func shellWord(text string) string {
	if strings.ContainsAny(text, " \t\"'\\$&;|<>()*?[]{}~#!`") {
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	return text
}

// scope is which resources a plan is about.
type scope struct {
	targets, exclude []string
	selector         string
}

func (s *scope) addFlags(flags *pflag.FlagSet) {
	flags.StringArrayVar(&s.targets, "target", nil, `Only this resource, and what it needs: KIND/NAME, or the address that plans show. Can be given again.`)
	flags.StringArrayVar(&s.exclude, "exclude", nil, "All but this resource, and what needs it. Can be given again.")
	flags.StringVarP(&s.selector, "selector", "l", "", "Only objects with these labels, and what they need.")
}

func (s *scope) request() *terminal.Request {
	return &terminal.Request{Targets: s.targets, Exclude: s.exclude, Selector: s.selector}
}

// intent is a scope, and what is to be done about it.
type intent struct {
	scope
	replace                       []string
	destroy, refresh, refreshOnly bool
}

func (i *intent) addFlags(flags *pflag.FlagSet) {
	i.scope.addFlags(flags)
	flags.StringArrayVar(&i.replace, "replace", nil, "Make this resource anew, though nothing forces it. Can be given again.")
	flags.BoolVar(&i.refresh, "refresh", false, "Ask the providers what became of every resource first. Without, what Atoll knows is taken for what is there.")
	flags.BoolVar(&i.refreshOnly, "refresh-only", false, "Take in what became of resources, and change nothing.")
	flags.BoolVar(&i.destroy, "destroy", false, "Destroy the resources. Their objects stay written.")
}

func (i *intent) request() (*terminal.Request, error) {
	r := i.scope.request()
	r.Replace, r.Refresh = i.replace, i.refresh
	switch {
	case i.destroy && i.refreshOnly:
		return nil, errors.New("--destroy removes resources and --refresh-only changes none: choose one")
	case i.destroy:
		r.Mode = v1alpha1.PlanDestroy
	case i.refreshOnly:
		r.Mode = v1alpha1.PlanRefreshOnly
	}
	return r, r.Check()
}

// parallel is how many resources a plan looks at at a time.
type parallel int32

func (p *parallel) addFlags(flags *pflag.FlagSet) {
	flags.Int32Var((*int32)(p), "parallelism", 64, "How many resources are looked at at a time, besides what each provider allows.")
}

func (p parallel) request(r *terminal.Request) error {
	r.Parallelism = int32(p)
	return p.check()
}

func (p parallel) check() error {
	if p < 1 || p > 1000 {
		return fmt.Errorf("--parallelism %d is not between 1 and 1000", p)
	}
	return nil
}

// given names the flags of those that were set.
func given(flags *pflag.FlagSet, names ...string) (out []string) {
	for _, name := range names {
		if flags.Changed(name) {
			out = append(out, "--"+name)
		}
	}
	return out
}

// waiting is how long a plan is waited for.
type waiting struct {
	wait     bool
	timeout  time.Duration
	detailed bool
	name     string
}

func (w *waiting) addFlags(flags *pflag.FlagSet, detailed string) {
	flags.StringVar(&w.name, "name", "", "Name of the plan. The default is one that the server makes up.")
	flags.BoolVar(&w.wait, "wait", true, "Wait until the plan is ready, and show it.")
	flags.DurationVar(&w.timeout, "timeout", 0, "How long to wait; 0 is as long as it takes. The planning goes on afterwards.")
	flags.BoolVar(&w.detailed, "detailed-exitcode", false, "Exit with 2 if "+detailed+", with 0 if not, and with 1 on an error.")
}

// run asks within the time that there is, and turns the answer into an exit code.
func (w *waiting) run(ctx context.Context, format string, ask func(context.Context, terminal.Planning) (bool, error)) error {
	switch {
	case !w.wait && w.detailed:
		return errors.New("--detailed-exitcode tells what is in the plan and --wait=false does not wait for it: choose one")
	case w.timeout < 0:
		return fmt.Errorf("--timeout %s is over before it begins: give a time such as 5m, or 0 for as long as it takes", w.timeout)
	case w.timeout > 0:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, w.timeout)
		defer cancel()
	}
	found, err := ask(ctx, terminal.Planning{Detached: !w.wait, Format: format})
	if err == nil && found && w.detailed {
		return errChanges
	}
	return err
}

// oneOf wants one name, and takes it as kubectl prints it too: plan.infra.atoll.dev/NAME.
func oneOf(args []string, one, many string) (string, error) {
	word, name, cut := strings.Cut(args[0], "/")
	if !cut {
		return args[0], nil
	}
	if word, _, _ = strings.Cut(word, "."); !slices.Contains([]string{one, many}, word) || name == "" {
		return "", fmt.Errorf("%s names no %s: write its name", strconv.Quote(args[0]), one)
	}
	return name, nil
}
