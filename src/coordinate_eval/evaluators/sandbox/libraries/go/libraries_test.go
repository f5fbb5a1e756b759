// Names the packages that programs may import, so that each is compiled once and not for each
// program.
package main

import (
	_ "bufio"
	_ "bytes"
	_ "container/heap"
	_ "container/list"
	_ "crypto/md5"
	_ "errors"
	_ "fmt"
	_ "math"
	_ "math/big"
	_ "math/bits"
	_ "math/rand"
	_ "os"
	_ "reflect"
	_ "regexp"
	_ "sort"
	_ "strconv"
	_ "strings"
	_ "sync"
	_ "testing"
	_ "time"
	_ "unicode"
	_ "unicode/utf8"

	_ "github.com/stretchr/testify/assert"
)
