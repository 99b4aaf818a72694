// Program terraform-provider-wide has a great many types of resources, all of them made up, the same ones each
// time. It keeps nothing: what state says of a resource is how it is. What it was asked to do stands
// in the log, if it is configured with a directory.
//
// WIDE_TYPES says how many types there are, 1500 unless said (see package settings).
package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6/tf6server"

	"github.com/atoll-dev/atoll/infra/testproviders/settings"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	types := 1500
	if text := settings.Get("WIDE_TYPES"); text != "" {
		var err error
		if types, err = strconv.Atoi(text); err != nil || types < 1 {
			return fmt.Errorf("WIDE_TYPES %q is no number above 0", text)
		}
	}
	server := New(types)
	return tf6server.Serve("providers.test/atoll/wide", func() tfprotov6.ProviderServer { return server })
}
