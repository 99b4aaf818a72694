// Program terraform-provider-demo5 is a provider on terraform-plugin-sdk/v2 (protocol 5), whose
// types are lenient: plan and result may differ in insignificant ways, above all null and "". It
// creates its objects in the same world as demo.
package main

import (
	"github.com/hashicorp/terraform-plugin-sdk/v2/plugin"
)

func main() {
	plugin.Serve(&plugin.ServeOpts{ProviderFunc: New, ProviderAddr: "providers.test/atoll/demo5"})
}
