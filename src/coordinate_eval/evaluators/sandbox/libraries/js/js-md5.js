// What programs use of the package js-md5, over Node's own module.
const { createHash } = require('crypto')
module.exports = (text) => createHash('md5').update(text).digest('hex')
