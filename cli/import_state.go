package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/atoll-dev/atoll/infra/terminal"
)

// stateFile is a state file that is imported, and how.
type stateFile struct {
	file string
	terminal.Adoption
}

// stateFileFlags mean nothing without a file.
var stateFileFlags = []string{"dry-run", "prefix", "provider", "data", "literals"}

func (f *stateFile) addFlags(flags *pflag.FlagSet) {
	flags.StringVarP(&f.file, "filename", "f", "", "State file of OpenTofu or Terraform, all of which is taken over; - is standard input.")
	flags.BoolVar(&f.DryRun, "dry-run", false, "With -f: show what would be written, and write nothing. With -o yaml, as manifests to keep.")
	flags.StringVar(&f.Prefix, "prefix", "", "With -f: what the names of all objects begin with.")
	flags.StringArrayVar(&f.Providers, "provider", nil, "With -f: what stands for a provider's configuration, as in hashicorp/aws.west=aws/west. The default is the Provider of that source, and the ProviderConfig called like the alias. Can be given again.")
	flags.BoolVar(&f.Data, "data", false, "With -f: take over data sources, too.")
	flags.BoolVar(&f.Literals, "literals", false, "With -f: write all values as they are, and recover no references.")
}

func (f *stateFile) run(cmd *cobra.Command, c *infraCommand) error {
	if c.output != "" && c.output != "yaml" || c.output == "yaml" && !f.DryRun {
		return fmt.Errorf("-o %s: with -f there is -o yaml alone, with --dry-run, which writes manifests", c.output)
	}
	if set := given(cmd.Flags(), "name", "wait", "timeout", "detailed-exitcode"); len(set) > 0 {
		return fmt.Errorf("%s is of the import of one resource: leave it out, and see with `%s plan` afterwards", set[0], cmd.Root().CommandPath())
	}
	f.Format = c.output
	close, err := f.open(cmd.InOrStdin())
	if err != nil {
		return err
	}
	defer close()
	s, err := c.session(cmd)
	if err != nil {
		return err
	}
	return s.ImportState(cmd.Context(), &f.Adoption)
}

// open opens the file, which is read more than once.
func (f *stateFile) open(in io.Reader) (func(), error) {
	if f.file == "-" {
		text, err := io.ReadAll(in)
		if err != nil {
			return nil, fmt.Errorf("read the state from standard input: %w", err)
		}
		f.Source, f.Size = bytes.NewReader(text), int64(len(text))
		return func() {}, nil
	}
	file, err := os.Open(f.file)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a directory: name the state file in it; with a remote backend, `tofu state pull` prints it", f.file)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	f.Source, f.Size = file, info.Size()
	return func() { file.Close() }, nil
}

// importOne has an object take over one resource.
func importOne(c *infraCommand, wait *waiting, cmd *cobra.Command, args []string) error {
	if set := given(cmd.Flags(), stateFileFlags...); len(set) > 0 {
		return fmt.Errorf("%s is of the import of a state file: name one with -f", set[0])
	}
	s, err := c.session(cmd)
	if err != nil {
		return err
	}
	return wait.run(cmd.Context(), c.output, func(ctx context.Context, how terminal.Planning) (bool, error) {
		return s.Import(ctx, args[0], args[1], args[2], wait.name, how)
	})
}
