package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/infra/terminal"
)

func newExportCommand() *cobra.Command {
	var (
		c           infraCommand
		how         terminal.Export
		file, after string
	)
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write a state file for OpenTofu",
		Long: `Write what is known of the resources of a namespace as a state file that OpenTofu and
Terraform can read, with the addresses that resources had when they were taken over
from there. Nothing is changed by it.

The file has everything, secrets too, as state files have.`,
		Example: `  atoll export -n shop > terraform.tfstate
  atoll export -n shop --after terraform.tfstate -f terraform.tfstate`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if after != "" {
				before, err := os.Open(after)
				if err != nil {
					return fmt.Errorf("--after: %w", err)
				}
				defer before.Close()
				how.After = before
			}
			s, err := c.session(cmd)
			if err != nil {
				return err
			}
			if file == "" || file == "-" {
				return s.ExportState(cmd.Context(), s.Out, &how)
			}
			return replaced(file, func(w io.Writer) error { return s.ExportState(cmd.Context(), w, &how) })
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&file, "filename", "f", "", "File to write, which only its owner may read. The default is standard output.")
	flags.StringVar(&after, "after", "", "State file that this one comes after: its lineage, the next serial, and its outputs. Without, a new lineage is begun.")
	flags.StringArrayVar(&how.Providers, "provider", nil, "Address of a provider's configuration, as in hashicorp/aws.west=aws/west. The default is the one that a resource was taken over with, or the source of its Provider. Can be given again.")
	c.addFlags(flags)
	return cmd
}

// replaced writes a file for its owner alone. It is there whole, or as it was before.
func replaced(name string, write func(io.Writer) error) (err error) {
	draft, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(draft.Name()))
		}
	}()
	if err := errors.Join(write(draft), draft.Sync(), draft.Close()); err != nil {
		return err
	}
	return os.Rename(draft.Name(), name)
}
