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
	"github.com/atoll-dev/atoll/infra/cliview"
)

// errChanges makes the program exit with 2 if --detailed-exitcode is set.
var errChanges = errors.New("the plan has changes")

// infraCommand is the common part of the infrastructure commands.
type infraCommand struct {
	atoll     target
	namespace string
	formats   []string
	output    string
	noColor   bool
}

// addFlags adds the flags that all of them have. Without formats there is no -o.
func (c *infraCommand) addFlags(flags *pflag.FlagSet, formats ...string) {
	flags.StringVarP(&c.namespace, "namespace", "n", "", "Namespace. The default is the kubeconfig context's namespace, or default.")
	if c.formats = formats; len(formats) > 1 {
		flags.StringVarP(&c.output, "output", "o", "", outputFlag(formats...)+" The default is human-readable.")
	}
	flags.BoolVar(&c.noColor, "no-color", false, "Disable colors, even on a terminal. Setting NO_COLOR does the same.")
	c.atoll.addPlainFlags(flags)
}

// session connects to the root or the workspace that the flags select.
func (c *infraCommand) session(cmd *cobra.Command) (*cliview.Session, error) {
	if c.output != "" {
		if err := checkFormat(c.output, c.formats...); err != nil {
			return nil, err
		}
	}
	config, err := c.atoll.config()
	if err != nil {
		return nil, err
	}
	if c.namespace, err = c.atoll.namespace(c.namespace); err != nil {
		return nil, err
	}
	s, err := cliview.Connect(config)
	if err != nil {
		return nil, err
	}
	s.Namespace = c.namespace
	s.In, s.Out, s.Err = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	s.Interactive = isTerminal(s.In)
	s.ErrIsTerminal = onTerminal(s.Err)
	s.Color = !c.noColor && os.Getenv("NO_COLOR") == "" && onTerminal(s.Out)
	s.Program = cmd.Root().CommandPath()
	s.Flags += c.atoll.text()
	return s, nil
}

// isTerminal reports whether the input is a terminal.
func isTerminal(in io.Reader) bool {
	file, ok := in.(*os.File)
	return ok && onTerminal(file)
}

// shellWord quotes text that a shell would split or expand.
func shellWord(text string) string {
	if strings.ContainsAny(text, " \t\"'\\$&;|<>()*?[]{}~#!`") {
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	return text
}

// scope selects the resources of a plan.
type scope struct {
	targets, exclude []string
	selector         string
}

func (s *scope) addFlags(flags *pflag.FlagSet) {
	flags.StringArrayVar(&s.targets, "target", nil, `Only this resource and its dependencies: KIND/NAME, or the address shown in plans. Can be repeated.`)
	flags.StringArrayVar(&s.exclude, "exclude", nil, "All resources except this one and its dependents. Can be repeated.")
	flags.StringVarP(&s.selector, "selector", "l", "", "Only objects with these labels, and their dependencies.")
}

func (s *scope) request() *cliview.Request {
	return &cliview.Request{Targets: s.targets, Exclude: s.exclude, Selector: s.selector}
}

// intent is a scope and the mode of the plan.
type intent struct {
	scope
	replace                       []string
	destroy, refresh, refreshOnly bool
}

func (i *intent) addFlags(flags *pflag.FlagSet) {
	i.scope.addFlags(flags)
	flags.StringArrayVar(&i.replace, "replace", nil, "Replace this resource, even if no change requires it. Can be repeated.")
	flags.BoolVar(&i.refresh, "refresh", false, "Read every resource from its provider before planning. By default, the last recorded state is used.")
	flags.BoolVar(&i.refreshOnly, "refresh-only", false, "Only record the current state of the resources; change no resource.")
	flags.BoolVar(&i.destroy, "destroy", false, "Destroy the resources. Their objects are kept.")
}

func (i *intent) request() (*cliview.Request, error) {
	r := i.scope.request()
	r.Replace, r.Refresh = i.replace, i.refresh
	switch {
	case i.destroy && i.refreshOnly:
		return nil, errors.New("--destroy and --refresh-only are mutually exclusive")
	case i.destroy:
		r.Mode = v1alpha1.PlanDestroy
	case i.refreshOnly:
		r.Mode = v1alpha1.PlanRefreshOnly
	}
	return r, r.Check()
}

// parallelism is how many resources a plan processes at a time.
type parallelism int32

func (p *parallelism) addFlags(flags *pflag.FlagSet) {
	flags.Int32Var((*int32)(p), "parallelism", 64, "Maximum number of resources processed concurrently, in addition to each provider's own limit.")
}

func (p parallelism) request(r *cliview.Request) error {
	r.Parallelism = int32(p)
	return p.check()
}

func (p parallelism) check() error {
	if p < 1 || p > 1000 {
		return fmt.Errorf("--parallelism %d is not between 1 and 1000", p)
	}
	return nil
}

// changedFlags returns the flags that were set.
func changedFlags(flags *pflag.FlagSet, names ...string) (out []string) {
	for _, name := range names {
		if flags.Changed(name) {
			out = append(out, "--"+name)
		}
	}
	return out
}

// planFlags are the flags of commands that create a plan and wait for it.
type planFlags struct {
	wait     bool
	timeout  time.Duration
	detailed bool
	name     string
}

func (w *planFlags) addFlags(flags *pflag.FlagSet, detailed string) {
	flags.StringVar(&w.name, "name", "", "Name of the plan. By default the server generates one.")
	flags.BoolVar(&w.wait, "wait", true, "Wait until the plan is ready, and show it.")
	flags.DurationVar(&w.timeout, "timeout", 0, "How long to wait; 0 is no limit. Planning continues afterwards.")
	flags.BoolVar(&w.detailed, "detailed-exitcode", false, "Exit with 2 if "+detailed+", with 0 if not, and with 1 on an error.")
}

// run calls ask within the timeout, and converts the result to an exit code.
func (w *planFlags) run(ctx context.Context, format string, ask func(context.Context, cliview.PlanOptions) (bool, error)) error {
	switch {
	case !w.wait && w.detailed:
		return errors.New("--detailed-exitcode requires the finished plan and cannot be used with --wait=false")
	case w.timeout < 0:
		return fmt.Errorf("--timeout %s is negative: use a duration such as 5m, or 0 for no limit", w.timeout)
	case w.timeout > 0:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, w.timeout)
		defer cancel()
	}
	found, err := ask(ctx, cliview.PlanOptions{Detached: !w.wait, Format: format})
	if err == nil && found && w.detailed {
		return errChanges
	}
	return err
}

// oneOf parses one name, also in the form that kubectl prints:
// plan.infra.atoll.dev/NAME.
func oneOf(args []string, one, many string) (string, error) {
	word, name, cut := strings.Cut(args[0], "/")
	if !cut {
		return args[0], nil
	}
	if word, _, _ = strings.Cut(word, "."); !slices.Contains([]string{one, many}, word) || name == "" {
		return "", fmt.Errorf("invalid argument %s: expected the name of one %s", strconv.Quote(args[0]), one)
	}
	return name, nil
}
