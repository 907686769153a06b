package qemu

import (
	"context"
	"errors"
	"os"

	"github.com/eqvps/eqvps/vmm"
)

// Suspend is not possible yet.
func (m *machine) Suspend(context.Context, *os.File, vmm.PageFunc) error {
	return errors.ErrUnsupported
}

// Continue is not possible yet.
func (m *machine) Continue(context.Context) error { return errors.ErrUnsupported }
